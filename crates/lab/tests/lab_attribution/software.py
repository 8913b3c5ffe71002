"""Sends datagrams to netdevs without hardware, one at a time, from the network namespace `far` or
into a tap, and receives them. Prints how many packets the backlog of the target CPU processed for
each, as JSON. Arguments: target CPU, number of datagrams, then netdev=address."""
import ctypes, fcntl, json, os, socket, struct, sys

TARGET, COUNT = int(sys.argv[1]), int(sys.argv[2])
TUNSETIFF, TAP, NO_PI, NAPI, CLONE_NEWNET = 0x400454CA, 2, 0x1000, 0x10, 0x40000000
os.sched_setaffinity(0, {1})


def softnet(column):
    for line in open("/proc/net/softnet_stat"):
        columns = [int(number, 16) for number in line.split()]
        if columns[12] == TARGET:
            return columns[column]


def statistic(netdev, name):
    return int(open(f"/sys/class/net/{netdev}/statistics/{name}").read())


def tap(name, address):
    """The descriptor of a tap, and a frame to its address."""
    fd = os.open("/dev/net/tun", os.O_RDWR)
    flags = TAP | NO_PI | (NAPI if "napi" in name else 0)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    mac = open(f"/sys/class/net/{name}/address").read().strip().replace(":", "")
    to, sender = socket.inet_aton(address), socket.inet_aton(address[:-1] + "2")
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 29, 1, 0, 64, 17, 0, sender, to)
    checksum = sum(struct.unpack("!10H", header))
    checksum = ~((checksum & 0xFFFF) + (checksum >> 16)) & 0xFFFF
    header = header[:10] + struct.pack("!H", checksum) + header[12:]
    udp = struct.pack("!HHHH", 9001, 9000, 9, 0) + b"x"
    return fd, bytes.fromhex(mac) + b"\2\0\0\0\0\x09\x08\0" + header + udp


receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("0.0.0.0", 9000))
receiver.settimeout(20)
netdevs = [argument.split("=") for argument in sys.argv[3:]]
taps = {name: tap(name, address) for name, address in netdevs if name.startswith("tap")}
for _ in range(20):
    # nobody reads it
    receiver.sendto(b"x", ("10.90.16.2", 9000))
counts = {"tap16 tx_dropped": statistic("tap16", "tx_dropped")}
backlog = os.open("/proc/sys/net/core/netdev_max_backlog", os.O_WRONLY)
with open("/run/netns/far") as far:
    assert ctypes.CDLL(None).setns(far.fileno(), CLONE_NEWNET) == 0
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
for name, address in netdevs:
    def send():
        if name in taps:
            os.write(*taps[name])
        else:
            sender.sendto(b"x", (address, 9000))
    # the netdev below receives broadcasts too
    only = b"macvlan9" if name == "broadcasts" else b""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, only + b"\0")
    # what comes before the first one: neighbours, and WireGuard's handshake
    send()
    receiver.recv(9)
    before = softnet(0)
    for _ in range(COUNT):
        send()
        receiver.recv(9)
    counts[name] = softnet(0) - before
# the backlog of the target is full
dropped = softnet(1), statistic("veth20", "rx_dropped")
os.write(backlog, b"1")
for _ in range(200):
    sender.sendto(b"x", ("10.90.20.1", 9000))
os.pwrite(backlog, b"1000", 0)
counts["cpu dropped"] = softnet(1) - dropped[0]
counts["veth20 rx_dropped"] = statistic("veth20", "rx_dropped") - dropped[1]
json.dump(counts, sys.stdout)
