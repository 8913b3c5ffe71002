-- The output of netsilo check --ndjson and netsilo plan --ndjson as tables. Before this, say where it
-- is (a file, or a pattern such as 'check-*.ndjson.gz'):
--   SET VARIABLE checks = 'check.ndjson';
--   SET VARIABLE plans = 'plan.ndjson';
-- The columns are named here, because a schema inferred from the first hosts may not fit the others.

-- One row per line of input: its answer, or why it could not be used. `line` is the number of the
-- line that netsilo read, `file` the output that has the answer.
CREATE OR REPLACE VIEW check_lines AS
SELECT filename AS file, line, bundle, error, host.name AS host, host.kernel, host.cpus,
       -- A host without netdevs that have interrupts has no driver.
       coalesce(nullif(array_to_string(host.drivers, ','), ''), 'none') AS drivers, "check"
FROM read_json(getvariable('checks'), format = 'newline_delimited', filename = true, columns = {
       line: 'BIGINT', bundle: 'VARCHAR', error: 'VARCHAR',
       host: 'STRUCT("name" VARCHAR, kernel VARCHAR, cpus INTEGER, drivers VARCHAR[])',
       "check": 'JSON'});

CREATE OR REPLACE VIEW plan_lines AS
SELECT filename AS file, line, bundle, error, host.name AS host, host.kernel, host.cpus,
       coalesce(nullif(array_to_string(host.drivers, ','), ''), 'none') AS drivers,
       json_array_length(plan->'changes') AS changes,
       json_array_length(plan->'refusals') AS refusals, plan
FROM read_json(getvariable('plans'), format = 'newline_delimited', filename = true, columns = {
       line: 'BIGINT', bundle: 'VARCHAR', error: 'VARCHAR',
       host: 'STRUCT("name" VARCHAR, kernel VARCHAR, cpus INTEGER, drivers VARCHAR[])',
       plan: 'JSON'});

-- One row per host: of several lines with a host's name, the last one that could be used.
CREATE OR REPLACE VIEW checks AS
FROM check_lines WHERE error IS NULL
QUALIFY row_number() OVER (PARTITION BY host ORDER BY file DESC, line DESC) = 1;
CREATE OR REPLACE VIEW plans AS
FROM plan_lines WHERE error IS NULL
QUALIFY row_number() OVER (PARTITION BY host ORDER BY file DESC, line DESC) = 1;

-- One row per finding of a host. Severity `ok` is a check that passed.
CREATE OR REPLACE VIEW findings AS
SELECT * EXCLUDE (finding), finding.id AS finding, finding.severity, finding.subject, finding.title
FROM (
    SELECT host, kernel, cpus, drivers, unnest(from_json("check"->'findings',
        '[{"id": "VARCHAR", "severity": "VARCHAR", "subject": "VARCHAR", "title": "VARCHAR"}]'
    )) AS finding
    FROM checks);

-- The lines that could not be used.
CREATE OR REPLACE VIEW unusable AS
SELECT file, line, bundle, error FROM check_lines WHERE error IS NOT NULL;
