//! `fcvi-pmd capture`: frames of a running process, read back by tshark.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use e2e::capture::{Frame, Occurrence, judge, read_file, read_file_with};
use e2e::datapath::{DatapathProcess, here};
use e2e::installation::built;
use e2e::nics::NicText;
use e2e::process::{Ended, Running, TIMEOUT, program, succeed};
use e2e::process::{unprivileged, unprivileged_user};
use e2e::scratch::Scratch;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// Round trips in a second of which the tap misses none, also when its reader stands still for a second.
const PACE: u32 = 1000;

/// A process with a NIC, a server attached to it, and a client with a port of its own, so that each
/// of their frames passes that NIC once.
struct Conversation {
    process: DatapathProcess,
    server: Running,
    client: Running,
    files: Scratch,
    _segment: Scratch,
}

impl Conversation {
    /// Of [`PACE`], or of round trips without pause.
    fn begin(paced: bool) -> Self {
        let segment = Scratch::in_memory("segment");
        let files = Scratch::new("capture");
        let nic = NicText::shm(segment.path()).steady();
        let own = nic.write(&files, "own.toml");
        let process = DatapathProcess::start(&files, "idle = \"hybrid\"", &nic, here);
        let peer = |config: &Path, words: &[&str]| {
            let mut command = program(PEER);
            command.env("VIADUCT_CONFIG", config).args(words);
            Running::start(words[0], &mut command)
        };
        let mut server = peer(process.config(), &["serve", "talk"]);
        server.wait_for("listening", TIMEOUT);
        let pace = PACE.to_string();
        let mut words = vec!["ping", "localhost", "talk", "--own", "me"];
        if paced {
            words.extend(["--per-second", &pace]);
        }
        let mut client = peer(&own, &words);
        client.wait_for("connected", TIMEOUT);
        Self {
            process,
            server,
            client,
            files,
            _segment: segment,
        }
    }

    /// Starts to capture; returns when it has begun.
    fn capture(&self, file: &Path, words: &[&str]) -> Running {
        let mut capture = self.capture_as(program(built().join("fcvi-pmd")), file, words);
        capture.wait_for("capturing VINIC0", TIMEOUT);
        capture
    }

    fn capture_as(&self, mut command: Command, file: &Path, words: &[&str]) -> Running {
        command.arg("capture").arg("--config");
        command.arg(self.process.config()).arg("-w").arg(file);
        Running::start("capture", command.args(words))
    }

    /// Waits until the conversation is so many round trips further.
    fn go_on(&mut self, round_trips: u64) {
        self.client.skip();
        let count = |line: &str| line.strip_prefix("alive ")?.parse::<u64>().ok();
        let begin = count(&self.client.wait_for("alive ", TIMEOUT).text).expect("a number");
        self.client
            .wait_until("further round trips", TIMEOUT, |line| {
                count(line).is_some_and(|now| now >= begin + round_trips)
            });
    }

    /// Ends everything; what the process said.
    fn end(self) -> Ended {
        let said = self.client.succeed(TIMEOUT);
        assert!(!said.contains("losses"), "{said}");
        self.server.succeed(TIMEOUT);
        let ended = self.process.stop();
        assert!(ended.status.success(), "{}", ended.text);
        ended
    }
}

/// Frames captured, and frames dropped by the tap.
fn counts(said: &str) -> (usize, usize) {
    let line = said
        .lines()
        .find(|line| line.contains(" frames captured, "));
    let words: Vec<_> = line
        .unwrap_or_else(|| panic!("{said}"))
        .split(' ')
        .collect();
    let number = |at: usize| words[at].parse().expect("a number");
    (number(0), number(3))
}

fn stop(capture: Running) -> (usize, usize) {
    capture.signal("INT");
    counts(&capture.succeed(TIMEOUT))
}

/// The ports that have sent something.
fn senders(frames: &[Frame]) -> Vec<String> {
    let mut senders: Vec<_> = frames.iter().map(|frame| frame.s_id().to_owned()).collect();
    senders.sort();
    senders.dedup();
    senders
}

#[test]
fn a_conversation_is_read_back_whole() {
    let mut talk = Conversation::begin(true);
    let file = talk.files.file("all.pcapng");
    let capture = talk.capture(&file, &[]);
    talk.go_on(500);
    let (captured, dropped) = stop(capture);
    let frames = read_file(&file);
    assert_eq!((frames.len(), dropped), (captured, 0));
    let sends = frames.iter().filter(|frame| frame.is_of_send()).count();
    assert!(sends >= 1000, "{sends}");
    judge(&frames);
    let ports = senders(&frames);
    assert_eq!(ports.len(), 2, "{ports:?}");

    // One side of it, cut short, so many.
    let port = &ports[0];
    let filter = format!("in and opcode == 1 and s_id == {port} or out and s_id == {port}");
    let words = ["--filter", &filter, "--count", "50", "--snaplen", "60"];
    let said = talk.capture(&file, &words).succeed(TIMEOUT);
    assert_eq!(counts(&said), (50, 0));
    let fields = ["fc.s_id", "frame.cap_len", "frame.len", "fc.type"];
    let rows = read_file_with(&file, &fields, Occurrence::First);
    assert_eq!(rows.len(), 50);
    for row in rows {
        assert_eq!((row[0].as_str(), row[1].as_str()), (port.as_str(), "60"));
        assert!(row[2].parse::<u32>().expect("a length") > 60, "{row:?}");
    }

    // None of it, for a while.
    let words = ["--filter", "fip or els", "--for", "0.2"];
    let said = talk.capture(&file, &words).succeed(TIMEOUT);
    assert_eq!(counts(&said), (0, 0));
    assert!(read_file(&file).is_empty());
    talk.end();
}

#[test]
fn a_slow_writer_loses_frames_and_nobody_else_does() {
    let mut talk = Conversation::begin(false);
    let pipe = talk.files.file("pipe");
    succeed(Command::new("mkfifo").arg(&pipe));
    // It is open for writing only when somebody reads: then the reader does nothing for a while.
    let (read, begin) = std::sync::mpsc::channel();
    let reader = thread::spawn({
        let pipe = pipe.clone();
        move || {
            let mut file = fs::File::open(pipe).expect("a pipe");
            begin.recv().expect("the word to begin");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).expect("a capture");
            bytes
        }
    });
    // The program itself writes regular files and its standard output only.
    let mut command = Command::new("sh");
    let script = "exec \"$0\" \"$@\" > \"$CAPTURE_PIPE\"";
    command.args(["-c", script]).arg(built().join("fcvi-pmd"));
    command.env("CAPTURE_PIPE", &pipe);
    let mut capture = talk.capture_as(command, Path::new("-"), &["--buffer", "64"]);
    capture.wait_for("capturing VINIC0", TIMEOUT);
    talk.go_on(8000);
    capture.signal("INT");
    read.send(()).expect("a reader");
    let (captured, dropped) = counts(&capture.succeed(TIMEOUT));
    let file = talk.files.file("slow.pcapng");
    fs::write(&file, reader.join().expect("a reader")).expect("room");
    let frames = read_file(&file);
    assert_eq!(frames.len(), captured);
    assert!(dropped > 0, "{captured} captured: the pipe takes them all");
    let sends = captured + dropped;
    assert!(sends >= 16_000, "{captured} captured, {dropped} dropped");
    judge(&frames);
    talk.go_on(100);
    let said = talk.end().text;
    let told = format!("{captured} frames were captured, {dropped} dropped");
    assert!(said.contains(&told), "{said}");
}

#[test]
fn a_capture_ends_with_its_operator_and_with_its_process() {
    let mut talk = Conversation::begin(true);
    let file = talk.files.file("killed.pcapng");
    let capture = talk.capture(&file, &[]);
    // One at a time.
    let second = talk.files.file("second.pcapng");
    let refused = talk.capture_as(program(built().join("fcvi-pmd")), &second, &[]);
    let refused = refused.finish(TIMEOUT);
    assert!(!refused.status.success());
    let why = "NIC VINIC0 is captured already";
    assert!(refused.text.contains(why), "{}", refused.text);
    assert!(!second.exists(), "what is refused makes no file");
    talk.go_on(100);
    capture.kill();
    let over = |line: &str| line.contains("NIC VINIC0: the capture of process");
    talk.process.says().wait_until("its end", TIMEOUT, over);
    let capture = talk.capture(&file, &[]);
    talk.go_on(100);
    // Its end is the process's, which gives all that it has.
    let ended = talk.process.stop();
    assert!(ended.status.success(), "{}", ended.text);
    let (captured, dropped) = counts(&capture.succeed(TIMEOUT));
    let frames = read_file(&file);
    assert!(captured >= 200 && dropped == 0, "{captured}, {dropped}");
    assert_eq!(frames.len(), captured);
}

#[test]
fn what_cannot_be_captured_is_told() {
    let talk = Conversation::begin(true);
    let file = talk.files.file("refused.pcapng");
    let told = |command: Command, words: &[&str], why: &str| {
        let ended = talk.capture_as(command, &file, words).finish(TIMEOUT);
        assert!(!ended.status.success(), "{words:?}");
        assert!(ended.text.contains(why), "{words:?}: {}", ended.text);
        assert!(!file.exists());
    };
    let own = || program(built().join("fcvi-pmd"));
    let why =
        "filter: \"sid\" at 7 is no flag or field: in, out, fcoe, fip, vi, els, bls, ethertype";
    told(own(), &["--filter", "vi and sid == 1"], why);
    let why = "no NIC is called \"X\"; there are VINIC0";
    told(own(), &["--device", "X"], why);
    if unprivileged_user() != 0 {
        let program: PathBuf = talk.files.file("fcvi-pmd");
        fs::copy(built().join("fcvi-pmd"), &program).expect("room");
        let why = "only root and the user of fcvi-pmd may capture";
        told(unprivileged(program), &[], why);
    } else {
        println!("\nnote: no other user here: that others may not capture is not tried");
    }
    talk.end();
}

#[test]
fn a_nic_that_moves_messages_without_frames_says_so() {
    let segment = Scratch::in_memory("segment");
    let files = Scratch::new("capture");
    let nic = NicText::shm(segment.path()).key("shortcut", true);
    let process = DatapathProcess::start(&files, "idle = \"hybrid\"", &nic, here);
    let file = files.file("empty.pcapng");
    let mut command = program(built().join("fcvi-pmd"));
    command.arg("capture").arg("--config").arg(process.config());
    command.args(["--for", "0.1", "-w"]).arg(&file);
    let said = Running::start("capture", &mut command).succeed(TIMEOUT);
    let note = "VINIC0: messages between VIs of this NIC are moved without frames and not seen: shortcut = false";
    assert!(said.contains(note), "{said}");
    assert!(process.stop().status.success());
}
