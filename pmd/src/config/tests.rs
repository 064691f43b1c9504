use super::*;

mod conflicts;
mod errors;

#[test]
fn every_example_is_valid() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let (mut seen, mut served) = (0, 0);
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let config = Config::read(&path).unwrap();
            assert!(!config.nics.is_empty(), "{}", path.display());
            seen += 1;
            served += u32::from(config.process.is_some());
        }
    }
    assert!(
        seen >= 6 && served >= 3,
        "{seen} examples, {served} with [process]"
    );
}

#[test]
fn empty_nic_table_is_a_nic_on_shared_memory() {
    let config = Config::parse("[[nic]]").unwrap();
    for name in ["VINIC", "VINIC0"] {
        let nic = config.nic(name).unwrap();
        assert_eq!((nic.port, nic.segment.as_str()), (PortKind::Shm, "default"));
    }
    for unknown in ["VINIC1", "vinic0", "VINIC-1", "VINICx", "", "eth0"] {
        assert!(config.nic(unknown).is_none(), "{unknown}");
    }
}

#[test]
fn nics_are_found_by_index_name_alias_and_interface() {
    let config = Config::parse(
        r#"
        [[nic]]
        segment = "one"
        [[nic]]
        name = "fast"
        port = "af_packet"
        interface = "veth7"
        host = "10.0.0.1"
        n_port_ids = "00.01.01-00.01.04"
        neighbour = [{ host = "10.0.0.2", n_port_ids = "00.01.10" }]
        [alias]
        clan0 = "fast"
        "#,
    )
    .unwrap();
    for name in ["VINIC1", "fast", "clan0", "veth7"] {
        assert_eq!(config.nic(name).unwrap().name, "fast", "{name}");
    }
    let nic = config.nic("fast").unwrap();
    assert_eq!(nic.own_ids().unwrap().len(), 4);
    assert_eq!(
        nic.neighbours().unwrap()[0].1,
        vec![NPortId::new(0x0110).unwrap()]
    );
    assert_eq!(nic.r_a_tov_ms(), 10_000);
}

#[test]
fn af_xdp_keys_are_parsed() {
    let text = "[[nic]]\nport = \"af_xdp\"\ninterface = \"veth7\"\nhost = \"10.0.0.1\"\n";
    let of = |keys: &str| Config::parse(&format!("{text}{keys}")).expect("legal keys");
    let config = of("");
    let nic = config.nic("veth7").expect("by its interface");
    assert_eq!(nic.port, PortKind::AfXdp);
    assert_eq!((nic.queue, nic.queues, nic.copy), (0, 1, CopyMode::Auto));
    assert!(nic.discovers() && nic.recovery());
    assert_eq!(nic.r_a_tov_ms(), 10_000);
    for (word, copy) in [
        ("auto", CopyMode::Auto),
        ("zero-copy", CopyMode::ZeroCopy),
        ("copy", CopyMode::Copy),
    ] {
        let config = of(&format!("queue = 3\nqueues = 2\ncopy = \"{word}\"\n"));
        let nic = &config.nics[0];
        assert_eq!((nic.queue, nic.queues, nic.copy), (3, 2, copy));
    }
}

#[test]
fn dpdk_keys_are_parsed() {
    let text =
        "[[nic]]\nport = \"dpdk\"\ndevice = \"net_memif0,role=server\"\nhost = \"10.0.0.1\"\n";
    let of = |keys: &str| Config::parse(&format!("{text}{keys}")).expect("legal keys");
    let config = of("");
    let nic = config.nic("net_memif0").expect("by its device");
    assert_eq!((nic.port, nic.port.name()), (PortKind::Dpdk, "dpdk"));
    assert_eq!(nic.device, "net_memif0,role=server");
    assert_eq!((nic.queues, nic.mtu_bytes), (1, None));
    assert_eq!((nic.huge_pages, nic.memory_mb), (false, 256));
    assert!(nic.args.is_empty() && nic.discovers() && nic.recovery());
    assert_eq!((nic.r_a_tov_ms(), nic.silent_port_ms()), (10_000, 100));
    assert!(config.nic("net_memif0,role=server").is_none());
    let keys = "queues = 2\nrx_frames = 16\nhuge_pages = true\nmemory_mb = 0\nmtu_bytes = 2500\n\
                args = [\"-l\", \"0\"]\nn_port_ids = \"00.01.01\"";
    let config = of(keys);
    let nic = &config.nics[0];
    assert_eq!((nic.queues, nic.mtu_bytes), (2, Some(2500)));
    assert_eq!((nic.huge_pages, nic.memory_mb), (true, 0));
    assert_eq!(nic.args, ["-l", "0"]);
    assert!(!nic.discovers());
    let recovery = nic.recovery_config().expect("on");
    assert_eq!(recovery.max_window_frames, 16, "capacity of the ring");
}

#[test]
fn both_ends_of_a_pair_of_rings_may_be_nics_of_one_file() {
    let end =
        "[[nic]]\nport = \"dpdk\"\ndevice = \"ring:a\"\nhost = \"10.0.0.1\"\nmemory_mb = 64\n";
    let other = end.replace("ring:a", "ring:b");
    let config = Config::parse(&[end, other.as_str(), end].concat()).unwrap();
    let names: Vec<_> = config.nics.iter().map(NicConfig::wire_name).collect();
    assert_eq!(names, [Some("ring:a"), Some("ring:b"), Some("ring:a")]);
    assert_eq!(Config::parse("[[nic]]").unwrap().nics[0].wire_name(), None);
}

#[test]
fn error_texts_name_key_and_requirement() {
    for (text, expected) in [
        ("[[nic]]\nmax_vis = 3", "max_vis"),
        ("[[nic]]\nport = \"shmem\"", "shmem"),
        ("[[nic]]\nmax_vi = 0", "max_vi = 0"),
        ("[[nic]]\nmax_vi = 5000", "1 to 4096"),
        ("[[nic]]\nmax_rdma_reads = 0", "1 to 256"),
        ("[[nic]]\nmax_rdma_reads = 257", "max_rdma_reads = 257"),
        ("[[nic]]\nmax_in_flight = 0", "1 to 256"),
        ("[[nic]]\nrdma_miss_burst = 0", "1 to 1000000"),
        ("[[nic]]\nrdma_misses_per_hour = 0", "1 to 1000000"),
        ("[[nic]]\nrdma_misses_per_connection = 0", "1 to 1000000"),
        ("[[nic]]\nrecovery_ack_messages = 0", "1 to 256"),
        ("[[nic]]\nrecovery_ack_bytes = 0", "recovery_ack_bytes = 0"),
        ("[[nic]]\nrecovery_ack_us = 1000001", "0 to 1000000"),
        ("[[nic]]\nrecovery_timeout_us = 9", "10 to 10000000"),
        ("[[nic]]\nrecovery_tries = 101", "1 to 100"),
        ("[[nic]]\nrecovery_min_window_frames = 1", "2 to 65536"),
        ("[[nic]]\nrecovery_window_frames = 31", "at most"),
        ("[[nic]]\nrecovery_islands = 4097", "1 to 4096"),
        ("[[nic]]\nmax_in_flight = 257", "max_in_flight = 257"),
        ("[[nic]]\nport = \"af_packet\"", "interface"),
        ("[[nic]]\nport = \"af_packet\"\ninterface = \"a\"", "host"),
        (
            "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"10.0.0.1\"\n\
             neighbour = [{host = \"::2\", n_port_ids = \"00.01.09\"}]",
            "without it, neighbours are discovered",
        ),
        (
            "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"10.0.0.1\"\n\
             port_name = \"20:00:52:54:00:00:00\"",
            "port_name = \"20:00:52:54:00:00:00\": must be eight bytes",
        ),
        (
            "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"10.0.0.1\"\n\
             node_name = \"0000000000000000\"",
            "node_name",
        ),
        ("[[nic]]\nbeacon_ms = 9", "beacon_ms = 9"),
        ("[[nic]]\ndiscovery_ms = 0", "discovery_ms = 0"),
        ("[[nic]]\nhost = \"ten\"", "host"),
        (
            "[[nic]]\nneighbour = [{host = \"::2\", n_port_ids = \"00.01.09-00.01.01\"}]",
            "ascending order",
        ),
        (
            "[[nic]]\nneighbour = [{host = \"::2\", n_port_ids = \"7\"}]",
            "must be",
        ),
        (
            "[[nic]]\nname = \"x\"\n[[nic]]\nname = \"x\"",
            "already used",
        ),
        ("nic = 7", "nic"),
        ("[[nic", "TOML"),
    ] {
        let message = Config::parse(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text:?}: {message}");
    }
    let missing = Config::read(Path::new("no/such/file.toml")).unwrap_err();
    assert!(missing.to_string().contains("no/such/file.toml"));
}

#[test]
fn nic_on_ethernet_without_n_port_ids_uses_discovery() {
    let text = "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"10.0.0.1\"\n";
    let names = "port_name = \"20:00:52:54:00:00:12:34\"\nnode_name = \"100052540000ABCD\"";
    let nic = |text: &str| Config::parse(text).unwrap().nics.remove(0);
    let plain = nic(text);
    assert!(plain.discovers());
    assert_eq!(plain.own_names().unwrap(), (None, None));
    let named = nic(&format!("{text}{names}"));
    let expected = (Some(0x2000_5254_0000_1234), Some(0x1000_5254_0000_ABCD));
    assert_eq!(named.own_names().unwrap(), expected);
    assert!(!nic(&format!("{text}n_port_ids = \"00.01.01\"")).discovers());
    assert!(!nic("[[nic]]").discovers());
}

#[test]
fn environment_overrides_protection() {
    let file = "[[nic]]\nprotection = \"lenient\"\n[[nic]]";
    let protections = |value: &str| {
        let mut config = Config::parse(file).unwrap();
        config.override_protection(OsStr::new(value)).map(|()| {
            config
                .nics
                .iter()
                .map(|nic| nic.protection)
                .collect::<Vec<_>>()
        })
    };
    use Protection::{Lenient, Strict};
    assert_eq!(protections("").unwrap(), [Lenient, Strict], "not set");
    assert_eq!(protections("lenient").unwrap(), [Lenient, Lenient]);
    assert_eq!(protections("strict").unwrap(), [Strict, Strict]);
    let error = protections("Lenient").unwrap_err().to_string();
    assert!(
        error.contains("VIPL_PROTECTION") && error.contains("Lenient"),
        "{error}"
    );
}

#[test]
fn recovery_defaults_to_networks_that_lose_frames() {
    let of = |port: &str, keys: &str| {
        let needed = match port {
            "shm" => "",
            "dpdk" => "device = \"x\"\nhost = \"10.0.0.1\"",
            _ => "interface = \"x\"\nhost = \"10.0.0.1\"",
        };
        let text = format!("[[nic]]\nport = \"{port}\"\n{needed}\n{keys}");
        let config = Config::parse(&text).expect("legal keys");
        config.nics[0].recovery_config()
    };
    assert_eq!(of("shm", ""), None);
    assert_eq!(of("af_packet", "recovery = false"), None);
    let default = vi_engine::RecoveryConfig::default();
    assert_eq!(of("shm", "recovery = true"), Some(default.clone()));
    assert_eq!(of("af_packet", ""), Some(default.clone()));
    assert_eq!(of("dpdk", ""), Some(default.clone()));
    let small = of("af_packet", "rx_frames = 16").expect("on");
    assert_eq!((small.min_window_frames, small.max_window_frames), (16, 16));
    let keys = "recovery_ack_us = 7\nrecovery_timeout_us = 20\nrecovery_tries = 3";
    let configured = of("af_packet", keys).expect("on");
    let expected = vi_engine::RecoveryConfig {
        ack_delay_ns: 7_000,
        min_timeout_ns: 20_000,
        tries: 3,
        ..default
    };
    assert_eq!(configured, expected);
}

#[test]
fn applications_per_user_defaults_to_half_if_other_users_may_attach() {
    for (text, of_user) in [
        ("", 64),
        ("max_applications = 1\nusers = [0, 1]", 1),
        ("users = [0, 1]", 32),
        ("groups = [100]", 32),
        ("max_applications = 9\ngroups = [100]", 5),
        ("groups = [100]\nmax_applications_per_user = 64", 64),
        ("max_applications_per_user = 3", 3),
    ] {
        let config = Config::parse(&format!("[[nic]]\n[process]\n{text}")).unwrap();
        assert_eq!(
            config.process.unwrap().applications_per_user(),
            of_user,
            "{text}"
        );
    }
}
