//! What the clients report.

use netsilo_lab::exact::Asked;
use netsilo_trial::traffic::LoadResult;
use serde::Deserialize;

/// What all clients of a measurement report together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ClientReport {
    pub(crate) transactions: f64,
    pub(crate) per_second: f64,
    /// 99th percentile of the response time. For several clients, the longest.
    pub(crate) p99_ms: Option<f64>,
}

/// The report of `netsilo-bench run`. Its transactions are those of the whole run; its rate
/// excludes the warm-up.
pub(crate) fn bench(text: &str) -> Option<ClientReport> {
    let report: LoadResult = serde_json::from_str(text).ok()?;
    Some(ClientReport {
        transactions: report.totals.responses as f64,
        per_second: report.figures().transactions_per_s?,
        p99_ms: None,
    })
}

/// The report of the lab's own client.
pub(crate) fn ask(text: &str) -> Option<ClientReport> {
    let report: Asked = serde_json::from_str(text).ok()?;
    Some(ClientReport {
        transactions: report.transactions as f64,
        per_second: report.transactions_per_second,
        p99_ms: None,
    })
}

/// The rows of redis-benchmark's CSV, one for each client:
/// `"GET","rps","avg_latency_ms","min","p50","p95","p99","max"`. It contains neither the number of
/// clients nor the number of requests of each.
pub(crate) fn redis(text: &str, clients: usize, requests: u32) -> Option<ClientReport> {
    let row = |line: &str| -> Option<(f64, f64)> {
        let cells = line.strip_prefix("\"GET\",")?.split(',');
        let cells: Vec<f64> =
            cells.filter_map(|cell| cell.trim_matches('"').parse().ok()).collect();
        Some((*cells.first()?, *cells.get(5)?))
    };
    let rows: Vec<_> = text.lines().filter_map(row).collect();
    (rows.len() == clients).then(|| ClientReport {
        transactions: clients as f64 * f64::from(requests),
        per_second: rows.iter().map(|(rate, _)| rate).sum(),
        p99_ms: Some(rows.iter().map(|(_, p99)| *p99).fold(0.0, f64::max)),
    })
}

/// The report of wrk.
pub(crate) fn wrk(text: &str) -> Option<ClientReport> {
    let requests = text.lines().find_map(|line| line.split_once(" requests in "))?.0;
    let p99 = after(text, "99%")?;
    let p99 = match p99 {
        it if it.ends_with("us") => it.trim_end_matches("us").parse::<f64>().ok()? / 1e3,
        it if it.ends_with("ms") => it.trim_end_matches("ms").parse().ok()?,
        it => it.trim_end_matches('s').parse::<f64>().ok()? * 1e3,
    };
    Some(ClientReport {
        transactions: requests.trim().parse().ok()?,
        per_second: after(text, "Requests/sec:")?.parse().ok()?,
        p99_ms: Some(p99),
    })
}

/// The report of dnsperf.
pub(crate) fn dnsperf(text: &str) -> Option<ClientReport> {
    Some(ClientReport {
        transactions: after(text, "Queries completed:")?.parse().ok()?,
        per_second: after(text, "Queries per second:")?.parse().ok()?,
        p99_ms: None,
    })
}

/// The reports of several clients of iperf3, one after another. A transaction is 64 KiB received by
/// the server.
pub(crate) fn iperf3(text: &str, clients: usize) -> Option<ClientReport> {
    const TRANSACTION: f64 = 65536.0;
    #[derive(Deserialize)]
    struct Report {
        end: End,
    }
    #[derive(Deserialize)]
    struct End {
        sum_received: Received,
    }
    #[derive(Deserialize)]
    struct Received {
        bytes: f64,
        bits_per_second: f64,
    }
    let reports = serde_json::Deserializer::from_str(text).into_iter::<Report>();
    let received: Vec<Received> =
        reports.map(|report| Some(report.ok()?.end.sum_received)).collect::<Option<_>>()?;
    (received.len() == clients).then(|| ClientReport {
        transactions: received.iter().map(|it| it.bytes).sum::<f64>() / TRANSACTION,
        per_second: received.iter().map(|it| it.bits_per_second).sum::<f64>() / 8.0 / TRANSACTION,
        p99_ms: None,
    })
}

/// The first word after a name at the start of a line.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim().strip_prefix(name))?.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_has_a_row_of_each_client() {
        let row = r#""GET","1886.79","4.149","0.488","3.567","8.983","23.679","32.767""#;
        let text = format!("\"test\",\"rps\",\"avg_latency_ms\"\n{row}\n{row}\n");
        let report = redis(&text, 2, 500).unwrap();
        let expected =
            ClientReport { transactions: 1000.0, per_second: 3773.58, p99_ms: Some(23.679) };
        assert_eq!(report, expected);
        assert_eq!(redis(&text, 4, 500), None);
    }

    #[test]
    fn reports_of_wrk_and_dnsperf_are_read() {
        let text = "  Latency Distribution\n     50%   12.10ms\n     99%    1.25s\n  \
                    3475 requests in 3.01s, 825.31KB read\nRequests/sec:   1153.16\n";
        let expected =
            ClientReport { transactions: 3475.0, per_second: 1153.16, p99_ms: Some(1250.0) };
        assert_eq!(wrk(text), Some(expected));
        let text = "  Queries sent:         1021\n  Queries completed:    1020 (99.90%)\n\
                    \x20 Run time (s):         1.010000\n  Queries per second:   1009.900990\n";
        let expected = ClientReport { transactions: 1020.0, per_second: 1009.90099, p99_ms: None };
        assert_eq!(dnsperf(text), Some(expected));
        assert_eq!(wrk("unable to connect"), None);
    }

    #[test]
    fn reports_of_iperf3_follow_each_other() {
        let report = r#"{"start":{},"end":{"sum_received":{"bytes":65536,"bits_per_second":1e6}}}"#;
        let both = iperf3(&format!("{report}\n{report}\n"), 2).unwrap();
        let expected = 2.0 * 1e6 / 8.0 / 65536.0;
        assert_eq!((both.transactions, both.per_second), (2.0, expected));
        assert_eq!(iperf3(report, 2), None);
        let refused = r#"{"error":"the server is busy running a test"}"#;
        assert_eq!(iperf3(&format!("{report}{refused}"), 2), None);
    }

    #[test]
    fn the_report_of_the_labs_own_client_is_read() {
        let text =
            r#"{"transactions":12,"transactions_per_second":6.0,"p50_us":9.0,"p99_us":20.0}"#;
        let expected = ClientReport { transactions: 12.0, per_second: 6.0, p99_ms: None };
        assert_eq!(ask(text), Some(expected));
    }
}
