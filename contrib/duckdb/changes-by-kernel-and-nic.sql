-- What the plan would change, by kernel and NIC.
SELECT kernel, drivers, count(*) AS hosts,
       count(*) FILTER (changes > 0) AS hosts_with_changes,
       count(*) FILTER (changes = 0 AND refusals > 0) AS hosts_refused,
       sum(changes)::BIGINT AS changes
FROM plans
GROUP BY kernel, drivers
ORDER BY changes DESC, kernel, drivers;
