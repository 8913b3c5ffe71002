"""What a support case of netsilo needs, for sos report (sosreport): install it as
sos/report/plugins/netsilo.py next to sos' own plugins."""

from sos.report.plugins import Plugin, IndependentPlugin, DebianPlugin, UbuntuPlugin


class Netsilo(Plugin, IndependentPlugin, DebianPlugin, UbuntuPlugin):

    short_desc = 'netsilo: placement of network receive work'
    plugin_name = 'netsilo'
    profiles = ('network', 'performance')
    packages = ('netsilo',)
    commands = ('netsilo',)
    services = ('netsilo',)

    def setup(self):
        self.add_copy_spec([
            '/etc/netsilo/',
            '/etc/default/netsilo',
            # what netsilo changed since boot, with the old values
            '/run/netsilo/journal*',
            '/run/netsilo/irq/',
            # measurements that plans follow
            '/var/lib/netsilo/',
        ])
        self.add_cmd_output([
            'netsilo --version',
            'netsilo doctor',
            'netsilo run --check-config',
        ])
        # documents for programs: without the messages
        self.add_cmd_output([
            'netsilo status --json',
            'netsilo check --json',
            'netsilo plan --json',
        ], stderr=False)
        # everything that netsilo reads, without addresses: netsilo check --ndjson <FILE
        self.add_cmd_output('netsilo capture --ndjson', suggest_filename='netsilo.ndjson',
                            stderr=False)
        self.add_journal(units='netsilo')
