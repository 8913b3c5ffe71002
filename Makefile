# demo: the main job on real traffic in a small virtual machine.
# check: the tests that boot no guest.   test: all that continuous integration runs.
# test-long: before a release, what is too slow for test.
# generate: writes snapshots of tests, docs/schema.json and all else that the code generates.
# package: packages to install elsewhere.   release: all files of a release.
# Each installs what it needs (as root, on Debian or Ubuntu); only a Rust toolchain must be there.
PREFIX ?= /usr/local

.PHONY: demo docs generate package test check test-long mutants bench bench-irqbalance bench-load
.PHONY: bench-attribution bench-drops bench-guard bench-matrix bench-outcome bench-peers
.PHONY: bench-smoke bench-verdicts fuzz-long install predict-blind predict-score release setup soak

demo: setup
	cargo build --release -p netsilo -p netsilo-bench -p netsilo-lab
	target/release/netsilo-lab demo

test:
	@scripts/setup --test
	scripts/test

check:
	@scripts/setup --check
	scripts/test --quick

# Afterwards look at `git diff`: it shows what changed in behaviour or output.
generate:
	scripts/generate

# the documentation as a site (target/docs)
docs:
	scripts/docs

# the tests that `make test` leaves out (docs/lab.md); an hour or more
test-long:
	@scripts/setup --test-long
	scripts/test-long

# a .deb, an .rpm and a tarball in target/package/out (docs/install.md)
package:
	@scripts/setup --package
	scripts/package

# all files of a release in target/release-VERSION (CONTRIBUTING.md)
release:
	@scripts/setup --release
	scripts/release

# whether the tests notice changed code in crates/decide (docs/lab.md); an hour or two
mutants: setup
	scripts/mutants

# all fuzz targets for HOURS hours together, each time with other inputs (docs/lab.md)
HOURS ?= 1
fuzz-long:
	@scripts/setup --fuzz
	NETSILO_FUZZ_SEED=$$(date +%s) scripts/fuzz --total $$(( $(HOURS) * 3600 ))

# the daemon in a guest for HOURS hours while everything changes (docs/lab.md)
soak: setup
	SOAK_MINUTES=$$(( $(HOURS) * 60 )) NETSILO_NO_SKIP=1 scripts/test-long lab_soak

# what `netsilo predict` says of published experiments (evidence/predictions.md); a minute
predict-score: setup
	cargo run --release -p netsilo-predict --example score -- $(ARGS)

# 40 random pairs of setting and load on a veth of this machine: predicted first, measured then
# (evidence/predictions.md); some 8 minutes. ARGS="--keep DIR --at-most 200" stops between two
# loads, and the same command goes on; ARGS="--pairs 10" is a reduced run
predict-blind: setup
	cargo build --release -p netsilo -p netsilo-bench -p netsilo-lab
	target/release/netsilo-lab experiment predictions $(ARGS)

bench: setup
	cargo bench -p netsilo-decide --bench read --bench cycle

# this netsilo compared with the last release, or the parent commit (BASE=COMMIT: with that one):
# instructions, system calls, memory, CPU time; fails beyond the limits in
# crates/bench/benches/guard.toml; some 15 minutes
bench-guard: setup
	@scripts/setup --test
	scripts/bench-guard $(ROUNDS)

# compared with irqbalance, on synthetic hosts; some 6 minutes
bench-irqbalance: setup
	scripts/bench-irqbalance

# the load generator compared with sockperf, iperf3, qperf and netperf; some 18 minutes
bench-load: setup
	scripts/bench-load

# what counting costs the worst load, by hook (evidence/performance.md); some 18 minutes. Others on
# this machine disturb it
bench-attribution: setup
	cargo build --release -p netsilo
	cargo bench -q -p netsilo-bench --bench attribution

# what netsilo, dropwatch, pwru, retis and the kernel's counters find of the same lost packets, in a
# guest; some 6 minutes. Uses the tools that are installed (evidence/drops.md)
bench-drops: setup
	cargo build --release -p netsilo -p netsilo-lab
	cargo build -p netsilo --example losses
	target/release/netsilo-lab run --kernel 6.12 $(CURDIR)/scripts/bench-drops $(ARGS)

# netsilo compared with irqbalance, tuned, perftune and others, in one guest under eight workloads;
# minutes for each workload (evidence/peers.md)
bench-peers: setup
	cargo build --release -p netsilo -p netsilo-bench -p netsilo-lab
	target/release/netsilo-lab experiment peers $(ARGS)

# the default's choices, checked against what measures best on veths of this machine, at true speed,
# and against counts in guests; some 15 minutes for the veths, minutes for each load of a guest.
# ARGS="--part veth" (guest8, guest16, forward) measures a part. ARGS="--keep DIR --at-most 300"
# stops between two loads, and the same command goes on
bench-outcome: setup
	cargo build --release -p netsilo -p netsilo-bench -p netsilo-lab
	target/release/netsilo-lab experiment outcome $(ARGS)

# what check says of RPS on a veth, checked against what RPS does there, at true speed; some 15
# minutes
bench-verdicts: setup
	cargo build --release -p netsilo -p netsilo-bench -p netsilo-lab
	target/release/netsilo-lab experiment verdicts $(ARGS)

# the published experiment at reduced size on an emulated server of its shape: its directions, in
# counts; some 2 minutes
bench-smoke: setup
	cargo test -p netsilo-bench --test lab_matrix in_counts -- --ignored --nocapture

# the same in full, with a report to look at: some 17 minutes for each of ROUNDS rounds (default 6:
# with fewer no interval is exact)
bench-matrix: setup
	cargo test -p netsilo-bench --test lab_matrix in_full -- --ignored --nocapture

# netsilo and netsilo-bench
install:
	@scripts/setup --build
	cargo build --release -p netsilo -p netsilo-bench
	cargo build --quiet -p netsilo-dev
	target/debug/netsilo-package target/package $$(date -u +%F)
	for program in netsilo netsilo-bench; do \
		files=target/package/$$program; share=$(DESTDIR)$(PREFIX)/share; \
		install -D -m 0755 target/release/$$program $(DESTDIR)$(PREFIX)/bin/$$program && \
		install -D -m 0644 -t $$share/man/man8 $$files/man/man8/*.8 && \
		install -D -m 0644 -t $$share/bash-completion/completions \
			$$files/completions/bash/$$program && \
		install -D -m 0644 -t $$share/zsh/site-functions $$files/completions/zsh/_$$program && \
		install -D -m 0644 -t $$share/fish/vendor_completions.d \
			$$files/completions/fish/$$program.fish || exit 1; \
	done
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/man/man5 target/package/netsilo/man/man5/*.5
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system \
		dist/netsilo*.service dist/netsilo-keep.path
	sed -i 's|/usr/local/bin|$(PREFIX)/bin|' \
		$(DESTDIR)$(PREFIX)/lib/systemd/system/netsilo*.service
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/lib/udev/rules.d dist/90-netsilo-keep.rules

setup:
	@scripts/setup
