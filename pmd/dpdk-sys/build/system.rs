//! The build with the system's DPDK.

use std::any::Any;
use std::env;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::Command;

use bindgen::{Builder, RustEdition, RustTarget};

/// The oldest supported release.
const OLDEST: &str = "22.11";

/// Libraries that the shim and the bindings use. pkg-config lists all of DPDK's libraries, and each of them would be
/// loaded with the program.
const LIBRARIES: [&str; 6] = [
    "rte_eal",
    "rte_ethdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_net_ring",
    "rte_ring",
];

const SHIM_HEADER: &str = "c/shim.h";
const SHIM_SOURCE: &str = "c/shim.c";

const FUNCTIONS: [&str; 17] = [
    "dpdk_sys_.*",
    "rte_eal_(init|cleanup|process_type|has_hugepages|iova_mode)",
    "rte_thread_(register|unregister)",
    "rte_log_(set|get)_global_level",
    "rte_strerror",
    "rte_version",
    "rte_dev_(probe|remove)",
    "rte_eth_dev_(configure|start|stop|close|info_get|socket_id|is_valid_port|count_avail)",
    "rte_eth_dev_(get_port_by_name|get_name_by_port|get_mtu|set_mtu|default_mac_addr_set)",
    "rte_eth_dev_(callback_register|callback_unregister|rx_intr_enable|rx_intr_disable)",
    "rte_eth_dev_(rx_intr_ctl_q_get_fd|set_link_up|set_link_down)",
    "rte_eth_(find_next|macaddr_get|rx_queue_setup|tx_queue_setup)",
    "rte_eth_(stats_get|stats_reset|xstats_get|xstats_get_names|xstats_reset)",
    "rte_eth_(promiscuous|allmulticast)_(enable|disable|get)",
    "rte_eth_dev_(mac_addr_add|mac_addr_remove|set_mc_addr_list|adjust_nb_rx_tx_desc)",
    "rte_eth_from_rings|rte_ring_(create|free)",
    "rte_(pktmbuf_pool_create|pktmbuf_pool_create_extbuf|mempool_free|mempool_avail_count|extmem_register|extmem_unregister)",
];

const TYPES: [&str; 1] = ["rte_eth_event_type"];

const CONSTANTS: [&str; 5] = [
    "DPDK_SYS_.*",
    "RTE_ETH_(NAME_MAX_LEN|XSTATS_NAME_SIZE)",
    "RTE_(MAX_ETHPORTS|PKTMBUF_HEADROOM|ETHER_ADDR_LEN|ETHER_HDR_LEN|ETHER_CRC_LEN|MEMPOOL_CACHE_MAX_SIZE)",
    "RING_F_(SP_ENQ|SC_DEQ)",
    "RTE_LOG_(EMERG|ALERT|CRIT|ERR|WARNING|NOTICE|INFO|DEBUG)",
];

/// Types declared as opaque in `src/opaque.rs`, and types that only these use.
const OPAQUE: [&str; 4] = [
    "rte_mbuf(_.*)?",
    "rte_mempool(_.*)?",
    "rte_ring",
    "rte_(device|memzone)",
];

/// Error of the build; its text contains the remedy.
#[derive(Debug)]
pub(crate) enum BuildError {
    /// pkg-config could not be run, or does not find libdpdk.
    PkgConfig(String),
    /// libclang does not accept the headers, or is missing.
    Bindings(String),
    /// The C compiler does not accept the shim, or is missing.
    Shim(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, cause, remedy) = match self {
            Self::PkgConfig(cause) => (
                "DPDK was not found",
                cause,
                "install libdpdk-dev and pkg-config, or set PKG_CONFIG_PATH to where libdpdk.pc is",
            ),
            Self::Bindings(cause) => (
                "the bindings cannot be generated",
                cause,
                "install clang, or set LIBCLANG_PATH to where libclang is",
            ),
            Self::Shim(cause) => (
                "the C shim cannot be compiled",
                cause,
                "install a C compiler, or name it in CC",
            ),
        };
        // A directive to cargo is one line.
        let cause = cause.replace('\n', "; ");
        write!(f, "{what}: {cause}. To fix it, {remedy}")
    }
}

/// Compiles the shim, generates the bindings and sets the libraries to link.
///
/// # Errors
/// A missing or unusable tool or library, with the remedy.
pub(crate) fn build() -> Result<(), BuildError> {
    for path in ["build/system.rs", SHIM_HEADER, SHIM_SOURCE] {
        println!("cargo::rerun-if-changed={path}");
    }
    for variable in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }

    let atleast = format!("--atleast-version={OLDEST}");
    let version = pkg_config(&["--modversion"])?.join(" ");
    pkg_config(&[&atleast])
        .map_err(|_| BuildError::PkgConfig(format!("release {version} is older than {OLDEST}")))?;
    let flags = pkg_config(&["--cflags"])?;
    compile_shim(&flags)?;
    generate_bindings(&flags)?;
    for directory in pkg_config(&["--variable=libdir"])? {
        println!("cargo::rustc-link-search=native={directory}");
    }
    // Newer releases have a separate library for the log.
    let has_log = pkg_config(&["--atleast-version=23.11"]).is_ok();
    // After the shim, which uses them.
    for library in LIBRARIES.into_iter().chain(has_log.then_some("rte_log")) {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    Ok(())
}

/// Returns the words that pkg-config prints about libdpdk. All flags are needed, also `-march` and `-include`: the
/// headers do not compile without them.
fn pkg_config(arguments: &[&str]) -> Result<Vec<String>, BuildError> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = Command::new(&program)
        .arg("--print-errors")
        .args(arguments)
        .arg("libdpdk")
        .output()
        .map_err(|error| BuildError::PkgConfig(format!("{program}: {error}")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(BuildError::PkgConfig(text.trim().to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

fn compile_shim(flags: &[String]) -> Result<(), BuildError> {
    let mut shim = cc::Build::new();
    shim.file(SHIM_SOURCE).warnings(true).extra_warnings(true);
    for flag in flags {
        shim.flag(system_header(flag));
    }
    shim.try_compile("dpdk_sys_shim")
        .map_err(|error| BuildError::Shim(error.to_string()))
}

/// Marks include paths as system headers, to suppress warnings in DPDK's headers.
fn system_header(flag: &str) -> String {
    flag.strip_prefix("-I")
        .map_or_else(|| flag.to_owned(), |path| format!("-isystem{path}"))
}

fn generate_bindings(flags: &[String]) -> Result<(), BuildError> {
    // The first version with this edition.
    let target =
        RustTarget::stable(85, 0).map_err(|error| BuildError::Bindings(error.to_string()))?;
    let mut builder = Builder::default()
        .header(SHIM_HEADER)
        // Rebuilds if the headers change.
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .clang_args(flags)
        .rust_target(target)
        .rust_edition(RustEdition::Edition2024)
        .wrap_unsafe_ops(true)
        .derive_default(true)
        .prepend_enum_name(false)
        .merge_extern_blocks(true);
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in CONSTANTS {
        builder = builder.allowlist_var(name);
    }
    for name in OPAQUE {
        builder = builder.blocklist_type(name);
    }
    // bindgen panics if libclang is missing.
    let bindings = panic::catch_unwind(AssertUnwindSafe(|| builder.generate()))
        .map_err(|cause| BuildError::Bindings(panic_text(cause.as_ref())))?
        .map_err(|error| BuildError::Bindings(error.to_string()))?;
    let directory = env::var_os("OUT_DIR").ok_or_else(|| {
        BuildError::Bindings("OUT_DIR is not set: run this with cargo".to_owned())
    })?;
    let path = PathBuf::from(directory).join("bindings.rs");
    bindings
        .write_to_file(&path)
        .map_err(|error| BuildError::Bindings(format!("{}: {error}", path.display())))
}

fn panic_text(cause: &(dyn Any + Send)) -> String {
    cause
        .downcast_ref::<String>()
        .map_or_else(|| "bindgen panicked".to_owned(), String::clone)
}
