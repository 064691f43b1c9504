//! Default quotas of applications as shares of a NIC's limits, and a check whether the quotas oversubscribe
//! the NIC.

use crate::nic::NicConfig;
use crate::process::{Principal, ProcessConfig};
use crate::quota::{ApplicationConfig, Quota, QuotaConfig, Shares, UserQuota};

/// A resource of a NIC that its applications share.
struct Resource {
    key: &'static str,
    /// Minimum share, also of a NIC with a lower limit: its own limit applies then.
    min: u64,
    of_nic: fn(&NicConfig) -> u64,
    of_quota: fn(&Quota) -> u64,
}

const VIS: Resource = Resource {
    key: "max_vi",
    min: 16,
    of_nic: |nic| nic.limits.max_vi.into(),
    of_quota: |quota| quota.max_vi.into(),
};
const PTAGS: Resource = Resource {
    key: "max_ptags",
    min: 16,
    of_nic: |nic| nic.limits.max_ptags.into(),
    of_quota: |quota| quota.max_ptags.into(),
};
const REGIONS: Resource = Resource {
    key: "max_regions",
    min: 64,
    of_nic: |nic| nic.limits.max_regions.into(),
    of_quota: |quota| quota.max_regions.into(),
};
const REGISTERED_BYTES: Resource = Resource {
    key: "max_registered_bytes",
    min: 1 << 26,
    of_nic: |nic| nic.limits.max_registered_bytes,
    of_quota: |quota| quota.max_registered_bytes,
};
const DESCRIPTORS: Resource = Resource {
    key: "max_descriptors",
    min: 1024,
    of_nic: |nic| {
        2 * u64::from(nic.limits.max_vi) * u64::from(nic.limits.max_descriptors_per_queue)
    },
    of_quota: |quota| quota.max_descriptors.into(),
};
const INCOMING: Resource = Resource {
    key: "max_incoming",
    min: 16,
    of_nic: |nic| nic.limits.max_incoming.into(),
    of_quota: |quota| quota.max_incoming.into(),
};

const SHARED: [Resource; 6] = [VIS, PTAGS, REGIONS, REGISTERED_BYTES, DESCRIPTORS, INCOMING];

impl Resource {
    /// Returns the limit of the NIC divided by `divisor`, within the minimum and maximum share.
    fn share(&self, nic: &NicConfig, divisor: u32) -> u64 {
        let limit = (self.of_nic)(nic);
        let share = limit / u64::from(divisor.max(1));
        let max = (self.of_quota)(&Quota::default());
        share.max(self.min).min(max)
    }

    /// Returns what all applications of a user may have together: the limit of the NIC divided by `divisor`, or the
    /// quota of one application if that is more. Descriptors have no limit of their own: they are on queues of VIs.
    fn of_user(&self, nic: &NicConfig, divisor: u32, quota: &Quota) -> u64 {
        let share = (self.of_nic)(nic) / u64::from(divisor.max(1));
        share.max((self.of_quota)(quota))
    }
}

impl QuotaConfig {
    /// Returns the quota of an application on a NIC, with defaults filled in.
    #[must_use]
    pub fn on(&self, nic: &NicConfig, shares: Shares) -> Quota {
        let Quota {
            max_cq,
            max_discriminators,
            rate_share,
            max_calls,
            max_calls_per_second,
            of_user,
            ..
        } = Quota::default();
        // A share is at most the maximum of its resource, which fits into u32.
        let share = |resource: &Resource| resource.share(nic, shares.application) as u32;
        let bytes = || REGISTERED_BYTES.share(nic, shares.application);
        let max_vi = self.max_vi.unwrap_or_else(|| share(&VIS));
        let quota = Quota {
            max_vi,
            max_cq: self.max_cq.unwrap_or(max_cq),
            // A tag for each VI, as the VIPL guide requires of a NIC.
            max_ptags: (self.max_ptags).unwrap_or_else(|| share(&PTAGS).max(max_vi)),
            max_regions: self.max_regions.unwrap_or_else(|| share(&REGIONS)),
            max_registered_bytes: self.max_registered_bytes.unwrap_or_else(bytes),
            max_descriptors: self.max_descriptors.unwrap_or_else(|| share(&DESCRIPTORS)),
            max_incoming: self.max_incoming.unwrap_or_else(|| share(&INCOMING)),
            max_discriminators: self.max_discriminators.unwrap_or(max_discriminators),
            rate_share: self.rate_share.unwrap_or(rate_share),
            max_calls: self.max_calls.unwrap_or(max_calls),
            max_calls_per_second: self.max_calls_per_second.unwrap_or(max_calls_per_second),
            of_user,
        };
        let divisor = self.user_share.unwrap_or(shares.user);
        let of_user = |resource: &Resource| resource.of_user(nic, divisor, &quota);
        // Limits of a NIC and quotas fit into u32, except for bytes.
        Quota {
            of_user: UserQuota {
                max_vi: of_user(&VIS) as u32,
                max_ptags: of_user(&PTAGS) as u32,
                max_regions: of_user(&REGIONS) as u32,
                max_registered_bytes: of_user(&REGISTERED_BYTES),
                max_incoming: of_user(&INCOMING) as u32,
            },
            ..quota
        }
    }
}

/// The applications that one key limits, and their quota.
struct Scope {
    key: &'static str,
    applications: u32,
    /// They are of one user, who has a share of the NIC.
    is_of_user: bool,
    /// The table that contains their quota.
    table: String,
    quota: QuotaConfig,
}

impl ProcessConfig {
    /// Returns a warning for each NIC and scope whose quotas together exceed the limits of the NIC, or of the user's
    /// share of it: the resources, their sums, and values that would fit. Oversubscription is not an error: few applications use their whole quota.
    #[must_use]
    pub fn oversubscribed(&self, nics: &[NicConfig]) -> Vec<String> {
        let scopes = self.scopes();
        let warnings = |nic| {
            let warnings = scopes.iter().filter_map(|scope| self.warning(nic, scope));
            warnings.collect::<Vec<_>>()
        };
        nics.iter().flat_map(warnings).collect()
    }

    /// Returns the scopes: `max_applications_per_user` limits one user, `max_applications` all users of a group and in
    /// total.
    fn scopes(&self) -> Vec<Scope> {
        let all = ("max_applications", self.max_applications);
        let per_user = ("max_applications_per_user", self.applications_per_user());
        let is_same = all.1 == per_user.1 && self.divisor_of_user(&self.quota) == 1;
        let scope = |(key, applications), table: String, quota| Scope {
            key,
            applications,
            is_of_user: key == per_user.0,
            table,
            quota,
        };
        let table_of = |entry: &ApplicationConfig, kind: &str, principal: &Principal| {
            let table = format!("the entry of {kind} {principal}");
            (table, entry.over(&self.quota))
        };
        let default_table = || "[process.quota]".to_owned();
        let mut scopes = vec![scope(all, default_table(), self.quota.clone())];
        if !is_same {
            scopes.push(scope(per_user, default_table(), self.quota.clone()));
        }
        for entry in &self.application {
            if let Some(user) = &entry.user {
                let (table, quota) = table_of(entry, "user", user);
                scopes.push(scope(per_user, table, quota));
            } else if let Some(group) = &entry.group {
                let (table, quota) = table_of(entry, "group", group);
                scopes.push(scope(all, table, quota));
            }
        }
        scopes
    }

    fn divisor_of_user(&self, quota: &QuotaConfig) -> u32 {
        quota.user_share.unwrap_or(self.shares().user)
    }

    fn warning(&self, nic: &NicConfig, scope: &Scope) -> Option<String> {
        let Scope {
            key,
            applications,
            is_of_user,
            table,
            quota,
        } = scope;
        let user_share = self.divisor_of_user(quota);
        let quota = quota.on(nic, self.shares());
        let (mut sums, mut fitting) = (Vec::new(), Vec::new());
        let mut fitting_applications = u64::from(*applications);
        for resource in &SHARED {
            let of_nic = (resource.of_nic)(nic);
            let limit = match is_of_user {
                true => resource.of_user(nic, user_share, &quota).min(of_nic),
                false => of_nic,
            };
            let each = (resource.of_quota)(&quota).min(limit);
            if each.saturating_mul(u64::from(*applications)) <= limit {
                continue;
            }
            let name = resource.key;
            sums.push(format!("{name} {applications} x {each} > {limit}"));
            let fitting_quota = limit / u64::from(*applications);
            if fitting_quota > 0 {
                fitting.push(format!("{name} = {fitting_quota}"));
            }
            fitting_applications = fitting_applications.min(limit / each.max(1));
        }
        if sums.is_empty() {
            return None;
        }
        if fitting_applications > 0 {
            fitting.push(format!("{key} = {fitting_applications}"));
        }
        let (name, sums) = (&nic.name, sums.join(", "));
        let of = match is_of_user {
            true => format!("a user's share of the NIC (user_share = {user_share})"),
            false => "the limits of the NIC".to_owned(),
        };
        let fitting = match fitting.split_last() {
            Some((last, [])) => format!("{last} would fit"),
            Some((last, others)) => {
                format!("{} in {table}, or {last}, would fit", others.join(", "))
            }
            None => "no values fit: raise the limits of the NIC".to_owned(),
        };
        Some(format!(
            "NIC {name}: {key} = {applications} applications with the quota of {table} may exceed {of}: {sums}: \
             {fitting}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::nic::Limits;

    fn config(text: &str) -> Config {
        Config::parse(text).expect("a configuration")
    }

    fn shares(application: u32) -> Shares {
        Shares {
            application,
            user: 2,
        }
    }

    fn without_user(quota: Quota) -> Quota {
        Quota {
            of_user: UserQuota::default(),
            ..quota
        }
    }

    fn warnings(text: &str) -> Vec<String> {
        let config = config(text);
        config.process.unwrap().oversubscribed(&config.nic)
    }

    #[test]
    fn default_quota_is_a_share_of_the_nic_within_limits() {
        let nic = NicConfig {
            limits: Limits {
                max_vi: 800,
                max_ptags: 800,
                max_regions: 16_000,
                max_registered_bytes: 1 << 33,
                max_descriptors_per_queue: 16,
                max_incoming: 160,
                ..Limits::default()
            },
            ..NicConfig::default()
        };
        let quota = QuotaConfig::default().on(&nic, shares(8));
        let expected = Quota {
            max_vi: 100,
            max_ptags: 100,
            max_regions: 2000,
            max_registered_bytes: 1 << 30,
            max_descriptors: 3200,
            max_incoming: 20,
            ..Quota::default()
        };
        assert_eq!(without_user(quota), expected);
        let least = QuotaConfig::default().on(&nic, shares(4096));
        let shared = (least.max_vi, least.max_ptags, least.max_regions);
        assert_eq!(shared, (16, 16, 64));
        assert_eq!(least.max_registered_bytes, 1 << 26);
        assert_eq!((least.max_descriptors, least.max_incoming), (1024, 16));
        let most = QuotaConfig::default().on(
            &NicConfig {
                limits: Limits {
                    max_vi: 4096,
                    max_regions: 65535,
                    ..Limits::default()
                },
                ..NicConfig::default()
            },
            shares(1),
        );
        assert_eq!(without_user(most), Quota::default());
        let small = NicConfig {
            limits: Limits {
                max_vi: 4,
                max_ptags: 4,
                max_regions: 3,
                max_registered_bytes: 4096,
                max_incoming: 1,
                max_descriptors_per_queue: 4,
                ..Limits::default()
            },
            ..NicConfig::default()
        };
        // Its own limits apply, so that one program can use all of them.
        let of_small = QuotaConfig::default().on(&small, shares(8));
        assert_eq!(without_user(of_small), without_user(least));
        let with_vis = QuotaConfig {
            max_vi: Some(600),
            ..QuotaConfig::default()
        };
        let tags = with_vis.on(&NicConfig::default(), shares(8)).max_ptags;
        assert_eq!(tags, 600, "a tag for each VI");
    }

    #[test]
    fn user_has_a_share_of_the_nic_or_the_quota_of_one_application() {
        let user = |text: &str| {
            let config = config(&format!("[[nic]]\nshm = {{}}\n[process]\n{text}\n"));
            let process = config.process.unwrap();
            let quota = match process.application.first() {
                Some(entry) => entry.over(&process.quota),
                None => process.quota.clone(),
            };
            quota.on(&config.nic[0], process.shares()).of_user
        };
        let half = UserQuota {
            max_vi: 512,
            max_ptags: 2048,
            max_regions: 16384,
            max_registered_bytes: 1 << 39,
            max_incoming: 128,
        };
        assert_eq!(user("users = [7]"), half);
        assert_eq!(user("groups = [100]"), half);
        let entry = "groups = [100]\n[[process.application]]\n";
        let granted = user(&format!("{entry}group = 100\nuser_share = 1"));
        assert_eq!((granted.max_vi, granted.max_incoming), (1024, 256));
        let own = user(&format!("{entry}group = 100\nmax_vi = 600"));
        assert_eq!((own.max_vi, own.max_incoming), (600, 128));
        let alone = config("[[nic]]\nshm = {}\n[process]\n");
        let process = alone.process.unwrap();
        let quota = process.quota.on(&alone.nic[0], process.shares());
        assert_eq!(quota.of_user.max_vi, 1024, "the process's own user alone");
    }

    #[test]
    fn configured_quota_is_kept() {
        let text = "[[nic]]\nshm = {}\n[process]\n[process.quota]\nmax_vi = 4096\nmax_regions = 1\n\
                    max_incoming = 65536\nrate_share = 3\n";
        let config = config(text);
        let quota = config.process.unwrap().quota.on(&config.nic[0], shares(8));
        assert_eq!((quota.max_vi, quota.max_regions), (4096, 1));
        assert_eq!((quota.max_incoming, quota.rate_share), (65536, 3));
        assert_eq!(quota.max_descriptors, 65536, "not set");
    }

    #[test]
    fn quotas_within_the_limits_of_the_nic_cause_no_warning() {
        for fits in [
            "max_applications = 8",
            "default_share = 64",
            "max_applications = 1\ndefault_share = 1",
        ] {
            let none: [String; 0] = [];
            let text =
                format!("[[nic]]\nshm = {{}}\nlimits.max_incoming = 1024\n[process]\n{fits}\n");
            assert_eq!(warnings(&text), none, "{fits}");
        }
    }

    #[test]
    fn example_configurations_are_not_oversubscribed_unless_documented() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let mut served = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let config = config(&text);
            let Some(process) = config.process else {
                continue;
            };
            served += 1;
            let warnings = process.oversubscribed(&config.nic);
            let is_documented = text.contains("`fcvi-pmd check` warns");
            assert_eq!(
                warnings.is_empty(),
                !is_documented,
                "{}: {warnings:#?}",
                path.display()
            );
        }
        assert!(served >= 3);
    }

    #[test]
    fn oversubscription_warning_contains_sums_and_fitting_values() {
        let lines = warnings(
            "[[nic]]\nshm = {}\nname = \"A\"\n[process]\nmax_applications = 10\nusers = [0, 1]\n\
             [process.quota]\nmax_vi = 300\nmax_registered_bytes = 4096\n",
        );
        assert_eq!(
            lines,
            [
                "NIC A: max_applications = 10 applications with the quota of [process.quota] may exceed the limits of \
                 the NIC: max_vi 10 x 300 > 1024, max_ptags 10 x 512 > 4096, max_regions 10 x 4096 > 32768, \
                 max_incoming 10 x 32 > 256: max_vi = 102, max_ptags = 409, max_regions = 3276, max_incoming = 25 in \
                 [process.quota], or max_applications = 3, would fit",
                "NIC A: max_applications_per_user = 5 applications with the quota of [process.quota] may exceed a \
                 user's share of the NIC (user_share = 2): max_vi 5 x 300 > 512, max_ptags 5 x 512 > 2048, \
                 max_regions 5 x 4096 > 16384, max_incoming 5 x 32 > 128: max_vi = 102, max_ptags = 409, \
                 max_regions = 3276, max_incoming = 25 in [process.quota], or max_applications_per_user = 1, would fit",
            ]
        );
    }

    #[test]
    fn oversubscription_warning_names_the_entry_of_user_or_group() {
        let lines = warnings(
            "[[nic]]\nshm = {}\nname = \"A\"\n[process]\nmax_applications = 8\nusers = [0, 1]\n\
             [[process.application]]\nuser = 1\nmax_vi = 512\n[[process.application]]\ngroup = 7\nmax_vi = 129\n",
        );
        assert_eq!(lines.len(), 2, "{lines:#?}");
        let of_user =
            "max_applications_per_user = 4 applications with the quota of the entry of user 1 may";
        assert!(lines[0].contains(of_user) && lines[0].contains("max_vi 4 x 512 > 512"));
        let of_group =
            "max_applications = 8 applications with the quota of the entry of group 7 may";
        assert!(
            lines[1].contains(of_group)
                && lines[1].contains("max_vi = 128 in the entry of group 7")
        );
    }

    #[test]
    fn oversubscription_warning_with_fewer_resources_than_applications() {
        let lines = warnings(
            "[[nic]]\nshm = {}\nlimits.max_vi = 4\nlimits.max_ptags = 4096\n[process]\nmax_applications = 8\n",
        );
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("max_vi 8 x 4 > 4"), "{}", lines[0]);
        assert!(
            lines[0].ends_with(": max_applications = 1 would fit"),
            "{}",
            lines[0]
        );
    }
}
