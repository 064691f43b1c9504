//! `fcvi-pmd capture`: frames of a running process, checked by tshark.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use e2e::capture::{Frame, Occurrence, check_frames, read_file, read_file_with};
use e2e::datapath::{DatapathProcess, fcvi_pmd, fcvi_pmd_path};
use e2e::nics::NicText;
use e2e::process::{Running, TIMEOUT, succeed, unprivileged, unprivileged_user};
use e2e::scratch::Scratch;
use e2e::vi_peer;

/// Round trips per second at which the tap drops no frames, also if its reader is delayed for a second.
const ROUND_TRIPS_PER_S: u32 = 1000;

/// A process with a NIC, a server attached to it, and a client with its own port, so that each frame passes that NIC
/// once.
struct EchoPair {
    process: DatapathProcess,
    server: Running,
    client: Running,
    files: Scratch,
    _segment: Scratch,
}

impl EchoPair {
    /// Starts the programs. `paced`: with [`ROUND_TRIPS_PER_S`], otherwise without pause.
    fn start(paced: bool) -> Self {
        let segment = Scratch::in_memory("segment");
        let files = Scratch::new("capture");
        let nic = NicText::shm(segment.path()).long_timeouts();
        let own = nic.write(&files, "own.toml");
        let process = DatapathProcess::local(&files, &nic);
        let server = vi_peer::serve(vi_peer::local(process.config()), "echo");
        let rate = ROUND_TRIPS_PER_S.to_string();
        let options: &[&str] = if paced { &["--per-second", &rate] } else { &[] };
        let own = vi_peer::local(&own);
        let client = vi_peer::ping_with(own, "localhost", "echo", "client", options);
        Self {
            process,
            server,
            client,
            files,
            _segment: segment,
        }
    }

    /// Starts a capture and waits until it is active.
    fn capture(&self, file: &Path, words: &[&str]) -> Running {
        let mut capture = self.capture_as(fcvi_pmd(), file, words);
        capture.wait_for("capturing VINIC0", TIMEOUT);
        capture
    }

    fn capture_as(&self, mut command: Command, file: &Path, words: &[&str]) -> Running {
        command.arg("capture").arg("--config");
        command.arg(self.process.config()).arg("-w").arg(file);
        Running::start("capture", command.args(words))
    }

    /// Pipes `count` captured frames into tshark, with a display filter for one sender. Returns sender and direction
    /// of each frame that it selects.
    fn filtered_by_tshark(&self, count: u32, sender: &str) -> Vec<Vec<String>> {
        let script = "\"$0\" capture --config \"$1\" --count \"$2\" -w - |
            tshark -n -r - -Y \"fc.s_id == $3\" -T fields -e fc.s_id -e frame.packet_flags_direction";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(fcvi_pmd_path());
        command.arg(self.process.config());
        let output = succeed(command.args([&count.to_string(), sender]));
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| line.split('\t').map(str::to_owned).collect())
            .collect()
    }

    /// Waits for `round_trips` further round trips.
    fn await_round_trips(&mut self, round_trips: u64) {
        self.client.discard_output();
        let count = |line: &str| line.strip_prefix("alive ")?.parse::<u64>().ok();
        let begin = count(&self.client.wait_for("alive ", TIMEOUT).text).expect("a number");
        self.client
            .wait_until("further round trips", TIMEOUT, |line| {
                count(line).is_some_and(|now| now >= begin + round_trips)
            });
    }

    /// Stops all programs; returns the log of the process.
    fn end(self) -> String {
        let output = self.client.succeed(TIMEOUT);
        assert!(!output.contains("losses"), "{output}");
        self.server.succeed(TIMEOUT);
        self.process.stop_and_check()
    }
}

/// Parses the numbers of captured and of dropped frames.
fn counts(output: &str) -> (usize, usize) {
    let line = output
        .lines()
        .find(|line| line.contains(" frames captured, "));
    let words: Vec<_> = line
        .unwrap_or_else(|| panic!("{output}"))
        .split(' ')
        .collect();
    let number = |at: usize| words[at].parse().expect("a number");
    (number(0), number(3))
}

fn stop(capture: Running) -> (usize, usize) {
    capture.signal("INT");
    counts(&capture.succeed(TIMEOUT))
}

/// Returns the source ports of frames.
fn senders(frames: &[Frame]) -> Vec<String> {
    let mut senders: Vec<_> = frames.iter().map(|frame| frame.s_id().to_owned()).collect();
    senders.sort();
    senders.dedup();
    senders
}

#[test]
fn capture_has_all_frames() {
    let mut pair = EchoPair::start(true);
    let file = pair.files.file("all.pcapng");
    let capture = pair.capture(&file, &[]);
    pair.await_round_trips(500);
    let (captured, dropped) = stop(capture);
    let frames = read_file(&file);
    assert_eq!((frames.len(), dropped), (captured, 0));
    let sends = frames.iter().filter(|frame| frame.is_of_send()).count();
    assert!(sends >= 1000, "{sends}");
    check_frames(&frames);
    let ports = senders(&frames);
    assert_eq!(ports.len(), 2, "{ports:?}");

    // One port, with limits of frame length and number.
    let port = &ports[0];
    let words = ["--n-port-id", port, "--count", "50", "--snaplen", "60"];
    let output = pair.capture(&file, &words).succeed(TIMEOUT);
    assert_eq!(counts(&output), (50, 0));
    let fields = ["fc.s_id", "fc.d_id", "frame.cap_len", "frame.len"];
    let rows = read_file_with(&file, &fields, Occurrence::First);
    assert_eq!(rows.len(), 50);
    for row in rows {
        assert!(row[..2].contains(port), "{row:?}");
        assert_eq!(row[2], "60");
        assert!(row[3].parse::<u32>().expect("a length") > 60, "{row:?}");
    }

    // A port without frames, with a time limit.
    let words = ["--n-port-id", "00.ff.ff", "--for", "0.2"];
    let output = pair.capture(&file, &words).succeed(TIMEOUT);
    assert_eq!(counts(&output), (0, 0));
    assert!(read_file(&file).is_empty());

    // The sender of a frame, selected by tshark, determines its direction.
    let mut directions: Vec<_> = ports
        .iter()
        .map(|port| {
            let rows = pair.filtered_by_tshark(50, port);
            assert!((1..50).contains(&rows.len()), "{rows:?}");
            let direction = rows[0][1].clone();
            for row in rows {
                assert_eq!(row, [port.as_str(), direction.as_str()]);
            }
            direction
        })
        .collect();
    directions.sort();
    assert_eq!(directions, ["0x00000001", "0x00000002"]);
    pair.end();
}

#[test]
fn slow_capture_drops_frames_without_delaying_the_nic() {
    let mut pair = EchoPair::start(false);
    let pipe = pair.files.file("pipe");
    succeed(Command::new("mkfifo").arg(&pipe));
    // The pipe can be opened for writing once it is open for reading; the reader then waits.
    let (read, begin) = std::sync::mpsc::channel();
    let reader = thread::spawn({
        let pipe = pipe.clone();
        move || {
            let mut file = fs::File::open(pipe).expect("a pipe");
            begin.recv().expect("the start of the reader");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).expect("a capture");
            bytes
        }
    });
    // The program itself writes regular files and its standard output only.
    let mut command = Command::new("sh");
    let script = "exec \"$0\" \"$@\" > \"$CAPTURE_PIPE\"";
    command.args(["-c", script]).arg(fcvi_pmd_path());
    command.env("CAPTURE_PIPE", &pipe);
    let mut capture = pair.capture_as(command, Path::new("-"), &["--buffer", "64"]);
    capture.wait_for("capturing VINIC0", TIMEOUT);
    // Several times the frames that the pipe and its buffers hold.
    pair.await_round_trips(1000);
    capture.signal("INT");
    read.send(()).expect("a reader");
    let (captured, dropped) = counts(&capture.succeed(TIMEOUT));
    let file = pair.files.file("slow.pcapng");
    fs::write(&file, reader.join().expect("a reader")).expect("the file is written");
    let frames = read_file(&file);
    assert_eq!(frames.len(), captured);
    assert!(dropped > 0, "{captured} captured: none was dropped");
    let sends = captured + dropped;
    assert!(sends >= 2000, "{captured} captured, {dropped} dropped");
    check_frames(&frames);
    pair.await_round_trips(100);
    let output = pair.end();
    let counts = format!("frames={captured} dropped={dropped}");
    assert!(output.contains(&counts), "{output}");
}

#[test]
fn capture_ends_with_its_command_and_with_its_process() {
    let mut pair = EchoPair::start(true);
    let file = pair.files.file("killed.pcapng");
    let capture = pair.capture(&file, &[]);
    // Only one capture at a time.
    let second = pair.files.file("second.pcapng");
    let refused = pair.capture_as(fcvi_pmd(), &second, &[]);
    let refused = refused.finish(TIMEOUT);
    assert!(!refused.status.success());
    let why = "NIC VINIC0: another capture is running";
    assert!(refused.text.contains(why), "{}", refused.text);
    assert!(!second.exists(), "a refused capture creates no file");
    pair.await_round_trips(100);
    capture.kill();
    let has_failed = |line: &str| line.contains("NIC VINIC0: capture failed: ");
    pair.process
        .output()
        .wait_until("the end of the capture", TIMEOUT, has_failed);
    let capture = pair.capture(&file, &[]);
    pair.await_round_trips(100);
    // When the process stops, the capture gets all remaining frames.
    pair.process.stop_and_check();
    let (captured, dropped) = counts(&capture.succeed(TIMEOUT));
    let frames = read_file(&file);
    assert!(captured >= 200 && dropped == 0, "{captured}, {dropped}");
    assert_eq!(frames.len(), captured);
}

#[test]
fn refused_captures_report_the_reason() {
    let pair = EchoPair::start(true);
    let file = pair.files.file("refused.pcapng");
    let assert_refused = |command: Command, words: &[&str], why: &str| {
        let ended = pair.capture_as(command, &file, words).finish(TIMEOUT);
        assert!(!ended.status.success(), "{words:?}");
        assert!(ended.text.contains(why), "{words:?}: {}", ended.text);
        assert!(!file.exists());
    };
    let own = fcvi_pmd;
    let why = "tip: select frames with tshark: fcvi-pmd capture -w - | tshark -r - -Y '";
    assert_refused(own(), &["--filter", "vi"], why);
    let why = "no NIC is called \"X\"; there are VINIC0";
    assert_refused(own(), &["--device", "X"], why);
    if unprivileged_user() != 0 {
        let program: PathBuf = pair.files.file("fcvi-pmd");
        fs::copy(fcvi_pmd_path(), &program).expect("the file is written");
        let why = "only root and the user of fcvi-pmd may capture";
        assert_refused(unprivileged(program), &[], why);
    } else {
        println!("\nnote: skipped: the user namespace has no other user");
    }
    pair.end();
}

#[test]
fn capture_warns_of_the_shortcut() {
    let segment = Scratch::in_memory("segment");
    let files = Scratch::new("capture");
    let nic = NicText::shm(segment.path()).key("fc_vi.shortcut", true);
    let process = DatapathProcess::local(&files, &nic);
    let file = files.file("empty.pcapng");
    let mut command = fcvi_pmd();
    command.arg("capture").arg("--config").arg(process.config());
    command.args(["--for", "0.1", "-w"]).arg(&file);
    let output = Running::start("capture", &mut command).succeed(TIMEOUT);
    let note = "VINIC0: messages between VIs of this NIC are copied without frames and not captured: set shortcut = false";
    assert!(output.contains(note), "{output}");
    process.stop_and_check();
}
