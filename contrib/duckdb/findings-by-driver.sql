-- Which drivers have which finding, and on how many of their hosts.
SELECT drivers, finding, count(DISTINCT host) AS hosts,
       round(100.0 * count(DISTINCT host) / any_value(of_driver), 1) AS percent
FROM findings
JOIN (SELECT drivers, count(*) AS of_driver FROM checks GROUP BY drivers) USING (drivers)
WHERE severity <> 'ok'
GROUP BY drivers, finding
ORDER BY hosts DESC, drivers, finding;
