"""A network namespace of this machine as a host: runs commands by `ip netns exec`.

The host is dead while the file `ansible_netns_dead` exists: then it cannot be reached.
"""
from __future__ import annotations

import os

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: netns
short_description: run commands in a network namespace
description: See the module's text.
options:
  netns:
    description: name of the namespace
    vars: [{name: ansible_netns}]
  dead:
    description: file that makes the host unreachable
    vars: [{name: ansible_netns_dead}]
"""


class Connection(Local):
    transport = "netns"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        if os.path.exists(self.get_option("dead")):
            raise AnsibleConnectionFailure("the host is dead")
        cmd = f"exec ip netns exec {self.get_option('netns')} {cmd}"
        return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
