-- Which hosts differ from their group: hosts of the same kernel, driver and number of CPUs usually
-- have the same findings. Shown are hosts with findings that most of a group of 5 or more lack.
WITH hosts AS (
    SELECT host, kernel, drivers, cpus,
           count(*) OVER (PARTITION BY kernel, drivers, cpus) AS in_group
    FROM checks),
with_finding AS (
    SELECT DISTINCT host, kernel, drivers, cpus, finding FROM findings WHERE severity <> 'ok'),
rare AS (
    SELECT *, count(*) OVER (PARTITION BY kernel, drivers, cpus, finding) AS have_it
    FROM with_finding)
SELECT host, kernel, drivers, cpus, list(finding ORDER BY finding) AS findings
FROM rare JOIN hosts USING (host, kernel, drivers, cpus)
WHERE in_group >= 5 AND have_it * 2 <= in_group
GROUP BY host, kernel, drivers, cpus
ORDER BY host;
