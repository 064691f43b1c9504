//! What an application has of a NIC that it shares with others, and whether all of them together
//! may have more than there is.

use super::NicConfig;
use super::process::{ApplicationConfig, ProcessConfig, Quota, QuotaConfig, Who};

/// Something of a NIC that its applications share.
struct Resource {
    key: &'static str,
    /// The least share, also of a NIC that has less: its own limit holds then.
    least: u64,
    of_nic: fn(&NicConfig) -> u64,
    of_quota: fn(&Quota) -> u64,
}

const VIS: Resource = Resource {
    key: "max_vi",
    least: 16,
    of_nic: |nic| nic.max_vi.into(),
    of_quota: |quota| quota.max_vi.into(),
};
const PTAGS: Resource = Resource {
    key: "max_ptags",
    least: 16,
    of_nic: |nic| nic.max_ptags.into(),
    of_quota: |quota| quota.max_ptags.into(),
};
const REGIONS: Resource = Resource {
    key: "max_regions",
    least: 64,
    of_nic: |nic| nic.max_regions.into(),
    of_quota: |quota| quota.max_regions.into(),
};
const REGISTERED_BYTES: Resource = Resource {
    key: "max_registered_bytes",
    least: 1 << 26,
    of_nic: |nic| nic.max_registered_bytes,
    of_quota: |quota| quota.max_registered_bytes,
};
const DESCRIPTORS: Resource = Resource {
    key: "max_descriptors",
    least: 1024,
    of_nic: |nic| 2 * u64::from(nic.max_vi) * u64::from(nic.max_descriptors_per_queue),
    of_quota: |quota| quota.max_descriptors.into(),
};
const INCOMING: Resource = Resource {
    key: "max_incoming",
    least: 16,
    of_nic: |nic| nic.max_incoming.into(),
    of_quota: |quota| quota.max_incoming.into(),
};

const SHARED: [Resource; 6] = [VIS, PTAGS, REGIONS, REGISTERED_BYTES, DESCRIPTORS, INCOMING];

impl Resource {
    /// One part in `parts` of what the NIC has, within limits.
    fn share(&self, nic: &NicConfig, parts: u32) -> u64 {
        let has = (self.of_nic)(nic);
        let share = has / u64::from(parts.max(1));
        let most = (self.of_quota)(&Quota::default());
        share.max(self.least).min(most)
    }
}

impl QuotaConfig {
    /// Returns what an application with this quota may have on a NIC.
    #[must_use]
    pub fn on(&self, nic: &NicConfig, default_share: u32) -> Quota {
        let Quota {
            max_cq,
            max_discriminators,
            rate_share,
            max_calls,
            max_calls_per_second,
            ..
        } = Quota::default();
        // No share is more than the limit of its resource, which fits.
        let share = |resource: &Resource| resource.share(nic, default_share) as u32;
        let bytes = || REGISTERED_BYTES.share(nic, default_share);
        let max_vi = self.max_vi.unwrap_or_else(|| share(&VIS));
        Quota {
            max_vi,
            max_cq: self.max_cq.unwrap_or(max_cq),
            // A tag for each VI, as the guide has it of a NIC.
            max_ptags: (self.max_ptags).unwrap_or_else(|| share(&PTAGS).max(max_vi)),
            max_regions: self.max_regions.unwrap_or_else(|| share(&REGIONS)),
            max_registered_bytes: self.max_registered_bytes.unwrap_or_else(bytes),
            max_descriptors: self.max_descriptors.unwrap_or_else(|| share(&DESCRIPTORS)),
            max_incoming: self.max_incoming.unwrap_or_else(|| share(&INCOMING)),
            max_discriminators: self.max_discriminators.unwrap_or(max_discriminators),
            rate_share: self.rate_share.unwrap_or(rate_share),
            max_calls: self.max_calls.unwrap_or(max_calls),
            max_calls_per_second: self.max_calls_per_second.unwrap_or(max_calls_per_second),
        }
    }
}

/// As many applications as a key lets attach.
struct Scope {
    key: &'static str,
    applications: u32,
    /// Where their quota stands.
    table: String,
    quota: QuotaConfig,
}

impl ProcessConfig {
    /// Tells where the applications that may attach may together have more of a NIC than it has: which resource, how
    /// much more, and the values that would fit. Nothing of it is a mistake: not every application uses all that it may.
    #[must_use]
    pub fn oversubscribed(&self, nics: &[NicConfig]) -> Vec<String> {
        let scopes = self.scopes();
        let told = |nic| {
            let told = scopes.iter().filter_map(|scope| self.told_of(nic, scope));
            told.collect::<Vec<_>>()
        };
        nics.iter().flat_map(told).collect()
    }

    /// One user is limited by `max_applications_per_user`, all users of a group and all others by `max_applications`.
    fn scopes(&self) -> Vec<Scope> {
        let all = ("max_applications", self.max_applications);
        let per_user = ("max_applications_per_user", self.applications_per_user());
        let is_alone = all.1 == per_user.1;
        let scope = |(key, applications), table: String, quota| Scope {
            key,
            applications,
            table,
            quota,
        };
        let table_of = |entry: &ApplicationConfig, kind: &str, who: &Who| {
            let table = format!("the entry of {kind} {who}");
            (table, entry.over(&self.quota))
        };
        let usual = || "[process.quota]".to_owned();
        let mut scopes = vec![scope(all, usual(), self.quota)];
        if !is_alone {
            scopes.push(scope(per_user, usual(), self.quota));
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

    fn told_of(&self, nic: &NicConfig, scope: &Scope) -> Option<String> {
        let Scope {
            key,
            applications,
            table,
            quota,
        } = scope;
        let quota = quota.on(nic, self.default_share);
        let (mut sums, mut fitting, mut fit) = (Vec::new(), Vec::new(), u64::from(*applications));
        for resource in &SHARED {
            let has = (resource.of_nic)(nic);
            let may = (resource.of_quota)(&quota).min(has);
            if may.saturating_mul(u64::from(*applications)) <= has {
                continue;
            }
            let name = resource.key;
            sums.push(format!("{name} {applications} x {may} > {has}"));
            let each = has / u64::from(*applications);
            if each > 0 {
                fitting.push(format!("{name} = {each}"));
            }
            fit = fit.min(has / may.max(1));
        }
        if sums.is_empty() {
            return None;
        }
        if fit > 0 {
            fitting.push(format!("{key} = {fit}"));
        }
        let (name, sums) = (&nic.name, sums.join(", "));
        let fitting = match fitting.split_last() {
            Some((last, [])) => format!("{last} would fit"),
            Some((last, others)) => {
                format!("{} in {table}, or {last}, would fit", others.join(", "))
            }
            None => "nothing would fit: raise the limits of the NIC".to_owned(),
        };
        Some(format!(
            "NIC {name}: {key} = {applications} applications with the quota of {table} may have more than the NIC \
             has: {sums}: {fitting}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text).expect("a configuration")
    }

    fn told(text: &str) -> Vec<String> {
        let config = config(text);
        config.process.unwrap().oversubscribed(&config.nics)
    }

    #[test]
    fn quota_that_is_not_set_is_a_share_of_the_nic_within_limits() {
        let nic = NicConfig {
            max_vi: 800,
            max_ptags: 800,
            max_regions: 16_000,
            max_registered_bytes: 1 << 33,
            max_descriptors_per_queue: 16,
            max_incoming: 160,
            ..NicConfig::default()
        };
        let quota = QuotaConfig::default().on(&nic, 8);
        let expected = Quota {
            max_vi: 100,
            max_ptags: 100,
            max_regions: 2000,
            max_registered_bytes: 1 << 30,
            max_descriptors: 3200,
            max_incoming: 20,
            ..Quota::default()
        };
        assert_eq!(quota, expected);
        let least = QuotaConfig::default().on(&nic, 4096);
        let shared = (least.max_vi, least.max_ptags, least.max_regions);
        assert_eq!(shared, (16, 16, 64));
        assert_eq!(least.max_registered_bytes, 1 << 26);
        assert_eq!((least.max_descriptors, least.max_incoming), (1024, 16));
        let most = QuotaConfig::default().on(
            &NicConfig {
                max_vi: 4096,
                max_regions: 65535,
                ..NicConfig::default()
            },
            1,
        );
        assert_eq!(most, Quota::default());
        let small = NicConfig {
            max_vi: 4,
            max_ptags: 4,
            max_regions: 3,
            max_registered_bytes: 4096,
            max_incoming: 1,
            max_descriptors_per_queue: 4,
            ..NicConfig::default()
        };
        // What it has is its own limit, so that a program can have all of it.
        assert_eq!(QuotaConfig::default().on(&small, 8), least);
        let with_vis = QuotaConfig {
            max_vi: Some(600),
            ..QuotaConfig::default()
        };
        let tags = with_vis.on(&NicConfig::default(), 8).max_ptags;
        assert_eq!(tags, 600, "a tag for each VI");
    }

    #[test]
    fn quota_that_is_set_stays_as_it_is() {
        let text = "[[nic]]\n[process]\n[process.quota]\nmax_vi = 4096\nmax_regions = 1\n\
                    max_incoming = 65536\nrate_share = 3\n";
        let config = config(text);
        let quota = config.process.unwrap().quota.on(&config.nics[0], 8);
        assert_eq!((quota.max_vi, quota.max_regions), (4096, 1));
        assert_eq!((quota.max_incoming, quota.rate_share), (65536, 3));
        assert_eq!(quota.max_descriptors, 65536, "not set");
    }

    #[test]
    fn quotas_that_add_up_to_what_the_nic_has_are_not_told() {
        for fits in [
            "max_applications = 8",
            "default_share = 64",
            "max_applications = 1\ndefault_share = 1",
        ] {
            let none: [String; 0] = [];
            let text = format!("[[nic]]\nmax_incoming = 1024\n[process]\n{fits}\n");
            assert_eq!(told(&text), none, "{fits}");
        }
    }

    #[test]
    fn quotas_of_the_examples_fit_but_where_the_file_says_so() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
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
            let told = process.oversubscribed(&config.nics);
            let says_so = text.contains("`fcvi-pmd check` warns");
            assert_eq!(told.is_empty(), !says_so, "{}: {told:#?}", path.display());
        }
        assert!(served >= 3);
    }

    #[test]
    fn quotas_that_add_up_to_more_are_told_with_what_would_fit() {
        let lines = told(
            "[[nic]]\nname = \"A\"\n[process]\nmax_applications = 10\nusers = [0, 1]\n\
             [process.quota]\nmax_vi = 300\nmax_registered_bytes = 4096\n",
        );
        assert_eq!(
            lines,
            [
                "NIC A: max_applications = 10 applications with the quota of [process.quota] may have more than the \
                 NIC has: max_vi 10 x 300 > 1024, max_ptags 10 x 512 > 4096, max_regions 10 x 4096 > 32768, \
                 max_incoming 10 x 32 > 256: max_vi = 102, max_ptags = 409, max_regions = 3276, max_incoming = 25 in \
                 [process.quota], or max_applications = 3, would fit",
                "NIC A: max_applications_per_user = 5 applications with the quota of [process.quota] may have more \
                 than the NIC has: max_vi 5 x 300 > 1024: max_vi = 204 in [process.quota], or \
                 max_applications_per_user = 3, would fit",
            ]
        );
    }

    #[test]
    fn quotas_of_users_and_groups_are_told_by_their_entries() {
        let lines = told(
            "[[nic]]\nname = \"A\"\n[process]\nmax_applications = 8\nusers = [0, 1]\n\
             [[process.application]]\nuser = 1\nmax_vi = 512\n[[process.application]]\ngroup = 7\nmax_vi = 129\n",
        );
        assert_eq!(lines.len(), 2, "{lines:#?}");
        let of_user =
            "max_applications_per_user = 4 applications with the quota of the entry of user 1 may";
        assert!(lines[0].contains(of_user) && lines[0].contains("max_vi 4 x 512 > 1024"));
        let of_group =
            "max_applications = 8 applications with the quota of the entry of group 7 may";
        assert!(
            lines[1].contains(of_group)
                && lines[1].contains("max_vi = 128 in the entry of group 7")
        );
    }

    #[test]
    fn more_applications_than_a_nic_has_of_something_are_told() {
        let lines =
            told("[[nic]]\nmax_vi = 4\nmax_ptags = 4096\n[process]\nmax_applications = 8\n");
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("max_vi 8 x 4 > 4"), "{}", lines[0]);
        assert!(
            lines[0].ends_with(": max_applications = 1 would fit"),
            "{}",
            lines[0]
        );
    }
}
