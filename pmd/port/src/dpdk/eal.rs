//! DPDK's environment abstraction layer (EAL): initialized once per process, in a temporary thread.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;
use std::process;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;

use dpdk_sys::{
    dpdk_sys_errno, dpdk_sys_hold_interrupts, dpdk_sys_release_interrupts, rte_eal_init,
    rte_strerror,
};

use super::config::{DpdkError, EalConfig, FailureDetail};
use super::log::{self, Mark};

/// The initialized EAL, which runs until the process exits.
#[derive(Debug)]
pub(super) struct Eal {
    config: EalConfig,
    /// The process that initialized it: forked children inherit only its memory, not its threads.
    pid: u32,
    /// Serializes adding, configuring, starting, stopping and removing devices.
    control: Mutex<()>,
}

/// A failed initialization.
#[derive(Debug)]
struct InitFailure {
    args: Vec<String>,
    detail: FailureDetail,
}

static EAL: OnceLock<Result<Eal, InitFailure>> = OnceLock::new();

/// One of our arguments, and the user's options that replace it.
struct Argument {
    words: Vec<String>,
    replaced_by: &'static [&'static str],
}

impl Argument {
    fn new(words: &[&str], replaced_by: &'static [&'static str]) -> Self {
        Self {
            words: words.iter().map(|&word| word.to_owned()).collect(),
            replaced_by,
        }
    }

    /// True if a given word is a replacing option: alone, with its value behind `=`, or (if the option is one letter)
    /// with its value directly behind it.
    fn is_replaced(&self, given: &[String]) -> bool {
        given.iter().any(|word| {
            self.replaced_by.iter().any(|option| {
                let rest = word.strip_prefix(option);
                rest.is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with('=') || !option.starts_with("--")
                })
            })
        })
    }
}

/// Returns the arguments of `rte_eal_init` behind the program's name, for a process that may use these cpus.
fn arguments(config: &EalConfig, cpus: &[usize]) -> Vec<String> {
    let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
    // One lcore on all cpus: the initializing thread ends at once, and EAL does not run our poll threads.
    let lcores = format!("0@({})", cpus.join(","));
    let memory = config.memory_mb.to_string();
    let mut ours = vec![
        Argument::new(&["--lcores", &lcores], &["--lcores", "-l", "-c", "-S"]),
        Argument::new(&["--no-telemetry"], &["--telemetry"]),
        // The ports add their devices: EAL must probe none. No driver matches the host bridge.
        Argument::new(
            &["--allow", "0000:00:00.0"],
            &["--allow", "-a", "--block", "-b", "--no-pci"],
        ),
    ];
    match config.huge_pages {
        true => ours.push(Argument::new(
            &["--in-memory"],
            &["--in-memory", "--huge-dir", "--huge-unlink", "--legacy-mem"],
        )),
        false => ours.push(Argument::new(
            &["--no-huge", "--no-shconf"],
            &["--no-huge", "--in-memory"],
        )),
    }
    if config.memory_mb > 0 {
        let memory = Argument::new(&["-m", &memory], &["-m", "--socket-mem"]);
        ours.push(memory);
    }
    ours.into_iter()
        .filter(|argument| !argument.is_replaced(&config.args))
        .flat_map(|argument| argument.words)
        .chain(config.args.iter().cloned())
        .collect()
}

/// Returns the cpus that this process may use.
fn cpus() -> Vec<usize> {
    // SAFETY: a C struct of integers, valid when zeroed.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is valid for a set of the given size. On failure the set stays empty.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    // SAFETY: every number is below the size of the set.
    let may_use = |&cpu: &usize| unsafe { libc::CPU_ISSET(cpu, &set) };
    let mut found: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(may_use).collect();
    if found.is_empty() {
        found.push(0);
    }
    found
}

/// Returns the text of an error number that DPDK returned, of either sign, and DPDK's log since `mark`.
pub(super) fn failure(number: c_int, mark: Mark) -> FailureDetail {
    // SAFETY: accepts any number.
    let text = unsafe { rte_strerror(number.saturating_abs()) };
    // SAFETY: a NUL-terminated text of the calling thread, valid until its next call.
    let text = unsafe { CStr::from_ptr(text) };
    FailureDetail {
        text: text.to_string_lossy().into_owned(),
        log: log::since(mark),
    }
}

/// As [`failure`], for calls that report their error in `rte_errno`.
pub(super) fn last_failure(mark: Mark) -> FailureDetail {
    // SAFETY: reads a variable of the calling thread.
    failure(unsafe { dpdk_sys_errno() }, mark)
}

/// Initializes EAL in a temporary thread, since it pins the thread to the lcore's cpus.
fn init(args: &[String]) -> Result<(), FailureDetail> {
    let failed = |number: c_int, mark| Err(failure(number, mark));
    let mark = log::mark();
    if let Err(number) = log::redirect() {
        return failed(number, mark);
    }
    let mut c_args = Vec::new();
    for arg in ["viaduct"]
        .into_iter()
        .chain(args.iter().map(String::as_str))
    {
        match CString::new(arg) {
            // EAL permutes the pointers and may keep them, but does not write to the texts.
            Ok(arg) => c_args.push(Box::leak(arg.into_boxed_c_str())),
            Err(_) => return failed(libc::EINVAL, mark),
        }
    }
    let starter = thread::Builder::new().name("eal-start".into());
    let started = starter.spawn(move || {
        let pointers: Vec<*mut c_char> = c_args.iter().map(|a| a.as_ptr().cast_mut()).collect();
        let pointers = pointers.leak();
        // SAFETY: the array and its texts are leaked, and this is called once per process.
        let parsed = unsafe { rte_eal_init(pointers.len() as c_int, pointers.as_mut_ptr()) };
        match parsed {
            0.. => Ok(()),
            _ => Err(last_failure(mark)),
        }
    });
    match started.map(thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) | Err(_) => failed(libc::EAGAIN, mark),
    }
}

impl Eal {
    /// Returns EAL, and initializes it on the first call.
    pub(super) fn get(config: &EalConfig) -> Result<&'static Self, DpdkError> {
        let started = EAL.get_or_init(|| {
            let args = arguments(config, &cpus());
            match init(&args) {
                Ok(()) => Ok(Self {
                    config: config.clone(),
                    pid: process::id(),
                    control: Mutex::new(()),
                }),
                Err(detail) => Err(InitFailure { args, detail }),
            }
        });
        let eal = started.as_ref().map_err(|failure| DpdkError::Eal {
            args: failure.args.clone(),
            detail: failure.detail.clone(),
            huge_pages: config.huge_pages,
        })?;
        if eal.is_forked() {
            return Err(DpdkError::Forked);
        }
        if eal.config != *config {
            return Err(DpdkError::OtherEal {
                running: eal.config.clone(),
            });
        }
        Ok(eal)
    }

    /// True in a forked child of the process that initialized it, which must not use it.
    pub(super) fn is_forked(&self) -> bool {
        self.pid != process::id()
    }

    /// Waits until the interrupt thread has finished the callbacks that it runs now; `false` if it did not within a
    /// second. The caller does not hold [`control`](Self::control).
    pub(super) fn drain_interrupts(&self) -> bool {
        let _control = self.control();
        // SAFETY: EAL runs, this thread holds the control lock, and it is not the interrupt thread.
        let drained = unsafe { dpdk_sys_hold_interrupts() } == 0;
        if drained {
            // SAFETY: the thread is blocked.
            unsafe { dpdk_sys_release_interrupts() };
        }
        drained
    }

    /// Locks the control of devices: held while a device is added, configured, started, stopped or removed.
    pub(super) fn control(&self) -> MutexGuard<'_, ()> {
        self.control
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(huge_pages: bool, memory_mb: u32, args: &[&str]) -> String {
        let config = EalConfig {
            huge_pages,
            memory_mb,
            args: args.iter().map(|&word| word.to_owned()).collect(),
        };
        arguments(&config, &[0, 3]).join(" ")
    }

    #[test]
    fn arguments_match_the_configuration() {
        let always = "--lcores 0@(0,3) --no-telemetry --allow 0000:00:00.0";
        assert_eq!(
            of(false, 64, &[]),
            format!("{always} --no-huge --no-shconf -m 64")
        );
        assert_eq!(of(true, 0, &[]), format!("{always} --in-memory"));
        assert_eq!(
            of(true, 512, &["--log-level=8"]),
            format!("{always} --in-memory -m 512 --log-level=8")
        );
    }

    #[test]
    fn arguments_of_the_user_replace_ours() {
        assert_eq!(
            of(
                true,
                512,
                &["-l1", "--telemetry", "--no-pci", "--huge-dir=/h", "-m", "9"]
            ),
            "-l1 --telemetry --no-pci --huge-dir=/h -m 9"
        );
        // An option with the same beginning does not replace it.
        assert!(of(true, 1, &["--memory-x"]).contains("-m 1"));
    }
}
