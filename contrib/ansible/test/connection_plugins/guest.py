"""A guest of the lab as a host: runs commands by the socket that `guests` serves for it.

A socket that closes without an answer is a host that cannot be reached.
"""
from __future__ import annotations

import base64
import json
import socket

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: guest
short_description: run commands in a guest of netsilo's lab
description: See the module's text.
options:
  socket:
    description: path of the guest's socket
    vars: [{name: ansible_guest_socket}]
"""


class Connection(ConnectionBase):
    transport = "guest"
    has_pipelining = True

    def _connect(self):
        return self

    def close(self):
        pass

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        stdin = base64.b64encode(in_data or b"").decode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.get_option("socket"))
            connection.sendall(json.dumps({"command": cmd, "stdin": stdin}).encode() + b"\n")
            answer = connection.makefile("rb").readline()
        if not answer:
            raise AnsibleConnectionFailure("the guest does not answer")
        answer = json.loads(answer)
        return answer["rc"], *(base64.b64decode(answer[name]) for name in ("stdout", "stderr"))

    def put_file(self, in_path, out_path):
        raise AnsibleConnectionFailure("with pipelining, no file is sent")

    def fetch_file(self, in_path, out_path):
        raise AnsibleConnectionFailure("nothing is fetched")
