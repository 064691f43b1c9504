//! DPDK's environment abstraction layer: started once in a process, by a thread of its own.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;
use std::process;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;

use dpdk_sys::{
    dpdk_sys_errno, dpdk_sys_hold_interrupts, dpdk_sys_release_interrupts, rte_eal_init,
    rte_strerror,
};

use super::config::{DpdkError, EalConfig, Said};
use super::log::{self, Mark};

/// EAL, which runs until the process ends.
#[derive(Debug)]
pub(super) struct Eal {
    config: EalConfig,
    /// The process that started it: children by fork have nothing but its memory.
    pid: u32,
    /// Devices come and go, are configured, started and stopped by one thread at a time.
    control: Mutex<()>,
}

/// Why EAL did not start.
#[derive(Debug)]
struct Failure {
    args: Vec<String>,
    said: Said,
}

static EAL: OnceLock<Result<Eal, Failure>> = OnceLock::new();

/// What stands for one of our arguments if it is among the user's.
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

    /// `word` is the option itself, with its value behind `=`, or (of one letter) with its value behind it.
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

/// The arguments for `rte_eal_init`, behind the program's name, on a process that may use these cpus.
fn arguments(config: &EalConfig, cpus: &[usize]) -> Vec<String> {
    let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
    // One lcore on all cpus: its thread ends at once, and who polls is not EAL's business.
    let lcores = format!("0@({})", cpus.join(","));
    let memory = config.memory_mb.to_string();
    let mut ours = vec![
        Argument::new(&["--lcores", &lcores], &["--lcores", "-l", "-c", "-S"]),
        Argument::new(&["--no-telemetry"], &["--telemetry"]),
        // Devices are named by the ports: EAL takes none by itself. No driver wants the host bridge.
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

/// The cpus that this process may use.
fn cpus() -> Vec<usize> {
    // SAFETY: a C struct of integers, valid when zeroed.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the set is ours and as long as we say. Failing, it stays empty.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    // SAFETY: every number is below the size of the set.
    let may_use = |&cpu: &usize| unsafe { libc::CPU_ISSET(cpu, &set) };
    let mut found: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(may_use).collect();
    if found.is_empty() {
        found.push(0);
    }
    found
}

/// What a number means that DPDK returned, with or without its sign.
pub(super) fn said(number: c_int, mark: Mark) -> Said {
    // SAFETY: takes any number.
    let text = unsafe { rte_strerror(number.saturating_abs()) };
    // SAFETY: it is a text of the calling thread's own, valid until its next call.
    let text = unsafe { CStr::from_ptr(text) };
    Said {
        text: text.to_string_lossy().into_owned(),
        log: log::since(mark),
    }
}

/// As [`said`], for calls that keep the number to themselves.
pub(super) fn said_last(mark: Mark) -> Said {
    // SAFETY: reads a variable of the calling thread.
    said(unsafe { dpdk_sys_errno() }, mark)
}

/// Starts EAL in a thread that ends then: it is pinned to the lcore's cpus.
fn init(args: &[String]) -> Result<(), Said> {
    let failed = |number: c_int, mark| Err(said(number, mark));
    let mark = log::mark();
    if let Err(number) = log::listen() {
        return failed(number, mark);
    }
    let mut words = Vec::new();
    for word in ["viaduct"]
        .into_iter()
        .chain(args.iter().map(String::as_str))
    {
        match CString::new(word) {
            // EAL moves the pointers about and may keep them, but writes no text.
            Ok(word) => words.push(Box::leak(word.into_boxed_c_str())),
            Err(_) => return failed(libc::EINVAL, mark),
        }
    }
    let starter = thread::Builder::new().name("eal-start".into());
    let started = starter.spawn(move || {
        let pointers: Vec<*mut c_char> = words.iter().map(|w| w.as_ptr().cast_mut()).collect();
        let pointers = pointers.leak();
        // SAFETY: the array and its texts live for ever, and nobody calls this a second time.
        let parsed = unsafe { rte_eal_init(pointers.len() as c_int, pointers.as_mut_ptr()) };
        match parsed {
            0.. => Ok(()),
            _ => Err(said_last(mark)),
        }
    });
    match started.map(thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) | Err(_) => failed(libc::EAGAIN, mark),
    }
}

impl Eal {
    /// EAL as configured, started now if it does not run.
    pub(super) fn get(config: &EalConfig) -> Result<&'static Self, DpdkError> {
        let started = EAL.get_or_init(|| {
            let args = arguments(config, &cpus());
            match init(&args) {
                Ok(()) => Ok(Self {
                    config: config.clone(),
                    pid: process::id(),
                    control: Mutex::new(()),
                }),
                Err(said) => Err(Failure { args, said }),
            }
        });
        let eal = started.as_ref().map_err(|failure| DpdkError::Eal {
            args: failure.args.clone(),
            said: failure.said.clone(),
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

    /// True in a child of the process that started it, which may use nothing of it.
    pub(super) fn is_forked(&self) -> bool {
        self.pid != process::id()
    }

    /// True once its interrupt thread has ended what it was at, `false` if it did not within a second. The caller does
    /// not handle devices.
    pub(super) fn interrupts_passed(&self) -> bool {
        let _control = self.control();
        // SAFETY: EAL runs, this thread handles devices, and it is not the interrupt thread.
        let passed = unsafe { dpdk_sys_hold_interrupts() } == 0;
        if passed {
            // SAFETY: it is held.
            unsafe { dpdk_sys_release_interrupts() };
        }
        passed
    }

    /// Makes this thread the one that handles devices, until the guard is dropped.
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
    fn arguments_follow_the_configuration() {
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
    fn the_users_arguments_take_the_place_of_ours() {
        assert_eq!(
            of(
                true,
                512,
                &["-l1", "--telemetry", "--no-pci", "--huge-dir=/h", "-m", "9"]
            ),
            "-l1 --telemetry --no-pci --huge-dir=/h -m 9"
        );
        // Another option that begins the same does not.
        assert!(of(true, 1, &["--memory-x"]).contains("-m 1"));
    }
}
