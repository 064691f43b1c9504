//! A client of the Prometheus endpoint of a datapath process.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::process::succeed;
use crate::wire::Namespace;

/// The address of the endpoint in its namespace.
pub const ADDRESS: &str = "127.0.0.1:9464";

/// A bash script that sends one HTTP request.
const FETCH: &str = r#"exec 3<>"/dev/tcp/${0%:*}/${0##*:}" &&
printf 'GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$0" >&3 && cat <&3"#;

/// Series and their values.
#[derive(Debug)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Fetches the metrics of the process in this namespace.
    ///
    /// # Panics
    /// The request fails, or the response is malformed.
    pub fn fetch(namespace: &Namespace) -> Self {
        let mut command = Command::new("bash");
        command.args(["-c", FETCH, ADDRESS]);
        let output = succeed(&mut namespace.enter(command));
        Self::read(&String::from_utf8(output.stdout).expect("text"))
    }

    /// Parses an HTTP response.
    fn read(response: &str) -> Self {
        let (head, body) = response.split_once("\r\n\r\n").expect("head and body");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let series = body.lines().filter(|line| !line.starts_with('#'));
        let series = series.map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            (name.to_owned(), value.parse().expect("a number"))
        });
        Self(series.collect())
    }

    /// Returns the value of a series, by its name and labels as written.
    ///
    /// # Panics
    /// There is no such series.
    pub fn get(&self, series: &str) -> f64 {
        *self
            .0
            .get(series)
            .unwrap_or_else(|| panic!("no {series} in {self:?}"))
    }

    /// Checks that each total of the first NIC is between its values in two outputs of `stat --json`. Returns the
    /// number of totals.
    ///
    /// # Panics
    /// One is not.
    pub fn assert_between(&self, before: &Value, after: &Value) -> usize {
        let (before, after) = (&before["nics"][0], &after["nics"][0]);
        let nic = before["name"].as_str().expect("a name");
        let check = |series: &str, key: &str, before: &Value, after: &Value| {
            let number = |value: &Value| value[key].as_f64().expect("a number");
            let (value, range) = (self.get(series), number(before)..=number(after));
            assert!(range.contains(&value), "{series} is {value}: {range:?}");
        };
        for (name, key) in [
            ("received_frames", "rx_frames"),
            ("received_bytes", "rx_bytes"),
            ("sent_frames", "tx_frames"),
            ("sent_bytes", "tx_bytes"),
        ] {
            let series = format!("viaduct_nic_{name}_total{{nic={nic:?}}}");
            check(&series, key, before, after);
        }
        let (before, after) = (&before["counters"], &after["counters"]);
        let mut totals = 0;
        for key in before.as_object().expect("counters").keys() {
            let families = [("drops", "reason"), ("events", "event")];
            let series = families.map(|(family, label)| {
                format!("viaduct_nic_{family}_total{{nic={nic:?},{label}={key:?}}}")
            });
            match series.iter().find(|series| self.0.contains_key(*series)) {
                Some(series) => check(series, key, before, after),
                // A gauge: it may decrease.
                None => {
                    self.get(&format!("viaduct_nic_level{{nic={nic:?},of={key:?}}}"));
                    continue;
                }
            }
            totals += 1;
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_parsed_into_series() {
        let text = "HTTP/1.1 200 OK\r\nA: b\r\n\r\n# HELP x Y.\nx{a=\"b c\"} 12\ny 0.5\n";
        let metrics = Metrics::read(text);
        assert_eq!(metrics.get("x{a=\"b c\"}").to_string(), "12");
        assert_eq!(metrics.get("y").to_string(), "0.5");
        let refused = std::panic::catch_unwind(|| Metrics::read("HTTP/1.1 503 No\r\n\r\n"));
        assert!(refused.is_err());
    }
}
