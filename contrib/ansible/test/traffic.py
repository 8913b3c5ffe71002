"""Traffic of one host of the test: 200 datagrams a second arrive at eth0 and are read. While RPS has
the mask 2, the reader keeps up with one in ten, and the others are lost.

traffic.py STOP: no datagram arrives while this file exists.
"""
import os
import socket
import struct
import sys
import time

PORT, SIZE = 9000, 1000
RPS = "/sys/class/net/eth0/queues/rx-0/rps_cpus"


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return ~(total + total // 0xffff) & 0xffff if total > 0xffff else ~total & 0xffff


def frame():
    address = bytes.fromhex(open("/sys/class/net/eth0/address").read().replace(":", ""))
    udp = struct.pack("!HHHH", PORT, PORT, 8 + SIZE, 0) + bytes(SIZE)
    head = [0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes([10, 9, 0, 2]), bytes([10, 9, 0, 1])]
    head[7] = checksum(struct.pack("!BBHHHBBH4s4s", *head))
    return address + address + b"\x08\x00" + struct.pack("!BBHHHBBH4s4s", *head) + udp


def main(stop):
    sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sender.bind(("peer0", 0))
    reader = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
    reader.bind(("10.9.0.1", PORT))
    reader.setblocking(False)
    one = frame()
    while True:
        if not os.path.exists(stop):
            for _ in range(10):
                sender.send(one)
        with open(RPS) as file:
            slow = int(file.read().replace(",", ""), 16) == 2
        try:
            for _ in range(1 if slow else 1000):
                reader.recv(2 * SIZE)
        except BlockingIOError:
            pass
        time.sleep(0.05)


main(*sys.argv[1:])
