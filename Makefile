# demo: the main job on real traffic in a small virtual machine.   test: everything that must hold.
# Both set up what they need (as root, on Debian or Ubuntu); only a Rust toolchain must be there.
PREFIX ?= /usr/local

.PHONY: demo test check bench bench-exact bench-irqbalance bench-load bench-matrix bench-smoke install setup

demo: setup
	cargo build --release -p netsilo -p netsilo-lab
	target/release/netsilo-lab demo

test:
	@scripts/setup --fuzz
	scripts/test

check: setup
	scripts/test --quick

bench: setup
	cargo bench -p netsilo-decide --bench read --bench cycle

# placement against the optimum on larger problems, by HiGHS, a C++ library that is built for this alone; some 30 minutes
bench-exact: setup
	scripts/bench-exact

# beside irqbalance, on made-up hosts; some 6 minutes
bench-irqbalance: setup
	scripts/bench-irqbalance

# the load generator beside sockperf, iperf3, qperf and netperf; some 18 minutes
bench-load: setup
	scripts/bench-load

# the published experiment at reduced size on an emulated server of its shape: its directions, in counts; some 2 minutes
bench-smoke: setup
	cargo test -p netsilo --test lab_matrix -- --nocapture

# the same in full, with a report to look at: some 17 minutes the first round, ROUNDS of them (6: with fewer no interval is exact)
bench-matrix: setup
	cargo test -p netsilo --test lab_matrix -- --ignored --nocapture

install: setup
	cargo build --release -p netsilo
	install -D -m 0755 target/release/netsilo $(DESTDIR)$(PREFIX)/bin/netsilo
	install -D -m 0644 dist/netsilo.service $(DESTDIR)$(PREFIX)/lib/systemd/system/netsilo.service
	sed -i 's|/usr/local/bin|$(PREFIX)/bin|' $(DESTDIR)$(PREFIX)/lib/systemd/system/netsilo.service

setup:
	@scripts/setup
