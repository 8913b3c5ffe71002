-- The output of netsilo check --ndjson and netsilo plan --ndjson as tables. Before this, say where it
-- is (a file, or a pattern such as 'check-*.ndjson.gz'):
--   SET VARIABLE checks = 'check.ndjson';
--   SET VARIABLE plans = 'plan.ndjson';
-- The columns are named here, because a schema inferred from the first hosts may not fit the others.

-- One row per host that could be checked.
CREATE OR REPLACE VIEW checks AS
SELECT line, host.name AS host, host.kernel, host.cpus,
       list_aggregate(host.drivers, 'string_agg', ',') AS drivers, "check"
FROM read_json(getvariable('checks'), format = 'newline_delimited', columns = {
       line: 'BIGINT',
       host: 'STRUCT("name" VARCHAR, kernel VARCHAR, cpus INTEGER, drivers VARCHAR[])',
       "check": 'JSON'})
WHERE "check" IS NOT NULL;

-- One row per finding. Severity `ok` is a check that passed.
CREATE OR REPLACE VIEW findings AS
SELECT * EXCLUDE (finding), finding.id AS finding, finding.severity, finding.subject, finding.title
FROM (
    SELECT host, kernel, cpus, drivers, unnest(from_json("check"->'findings',
        '[{"id": "VARCHAR", "severity": "VARCHAR", "subject": "VARCHAR", "title": "VARCHAR"}]'
    )) AS finding
    FROM checks);

-- One row per host that could be planned, with the number of changes of its plan.
CREATE OR REPLACE VIEW plans AS
SELECT line, host.name AS host, host.kernel, host.cpus,
       list_aggregate(host.drivers, 'string_agg', ',') AS drivers,
       json_array_length(plan->'changes') AS changes,
       json_array_length(plan->'refusals') AS refusals, plan
FROM read_json(getvariable('plans'), format = 'newline_delimited', columns = {
       line: 'BIGINT',
       host: 'STRUCT("name" VARCHAR, kernel VARCHAR, cpus INTEGER, drivers VARCHAR[])',
       plan: 'JSON'})
WHERE plan IS NOT NULL;

-- The lines that could not be used.
CREATE OR REPLACE VIEW unusable AS
SELECT * FROM read_json(getvariable('checks'), format = 'newline_delimited', columns = {
       line: 'BIGINT', bundle: 'VARCHAR', error: 'VARCHAR'})
WHERE error IS NOT NULL;
