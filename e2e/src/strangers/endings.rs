//! What the VI sees to which a lie is told (docs/spec/vitcp.md, Errors).

/// Is `found` the ending that this lie comes to? `in_pieces`: its bytes came one by one.
///
/// # Panics
/// If not.
pub fn is_ending(found: &str, lie: &str, level: &str, outcome: &str, in_pieces: bool) {
    let wanted = ending(lie, level, outcome);
    // Of more bytes than are allowed, some of those that are may come before the others.
    let is_partly = in_pieces && lie.ends_with("-longer-than-length");
    let upto = |text: &str| match is_partly {
        true => text.split("; Error").next().map(str::to_owned),
        false => Some(text.to_owned()),
    };
    assert_eq!(
        upto(found),
        upto(&wanted),
        "{lie} at {level}, where the liar saw {outcome}"
    );
}

/// How the connection ended for its program, as `vi-peer witness` and `vi-peer obey` tell it, but for the sends: all of
/// its messages that are no lies are answered.
///
/// `outcome` is what the liar saw.
fn ending(lie: &str, level: &str, outcome: &str) -> String {
    let is_unreliable = level == "ud";
    let is_write = lie.starts_with("write-");
    let is_immediate = lie.starts_with("write-immediate-");
    // Behind a lie that is none for ours, a message is sent there and back.
    let is_mute = matches!(lie, "segment-never-sent" | "send-without-credit");
    let kept = usize::from(outcome == "kept" && !is_mute);
    let whole = match lie {
        "send-without-credit" => 4,
        "number-repeated-send"
        | "control-write-to-the-end"
        | "control-send-of-mtu"
        | "slow-send"
        | "endless-empty-segments" => 1,
        _ => 0,
    };
    let failed = match lie {
        "transmit-error" => "partial message, transport error > ",
        "send-longer-than-mtu" => "local length error > ",
        _ if is_immediate && lie.ends_with("-than-length") => "partial message, transport error > ",
        _ if is_immediate => "local protection error > ",
        _ => "",
    };
    // All of them are used, and none is left to be flushed.
    let flushed = match lie {
        "send-without-credit" => "",
        _ => "flushed",
    };
    let event = match lie {
        "send-without-credit" => "RecvqEmpty, ",
        "write-longer-than-length" | "write-shorter-than-length" | "write-transmit-error"
            if !is_unreliable =>
        {
            "RdmawAbort, "
        }
        _ if is_write && !is_immediate && is_refused(lie) => "RdmawProt, ",
        _ if lie.starts_with("read-") && is_refused(lie) && !is_unreliable => "RdmarProt, ",
        _ => "",
    };
    let written = match lie {
        "control-write"
        | "write-shorter-than-length"
        | "write-immediate-shorter-than-length"
        | "write-transmit-error" => "written 0 to 15",
        // What came before the lie.
        "write-changes-address" | "write-changes-handle" | "write-changes-length" => {
            "written 0 to 15"
        }
        "control-write-in-two" => "written 0 to 31",
        "control-write-to-the-end" => "written 131056 to 131071",
        _ => "nothing written",
    };
    format!(
        "received {}; receives: {failed}{flushed}; {event}ConnLost; Error; {written}",
        whole + kept
    )
}

/// Is it a lie about which memory is meant?
fn is_refused(lie: &str) -> bool {
    const WHICH: [&str; 6] = [
        "-handle-unknown",
        "-address-unknown",
        "-address-wraps",
        "-over-the-end",
        "-before-the-begin",
        "-length-ffffffff",
    ];
    WHICH.iter().any(|which| lie.ends_with(which))
}

/// What a read of ours ends with to which a lie is the answer, at either reliable level.
///
/// # Panics
/// For a lie of something else.
pub fn end_of_read(lie: &str) -> &'static str {
    match lie {
        "control-response" | "control-response-in-two" | "response-immediate" => "64 bytes from 0",
        // The answer is right, and what follows it is none.
        "response-twice" => "64 bytes from 0",
        "response-refused" | "response-transmit-error" => "RDMA protection error",
        "response-version-2" | "response-other-number" => "flushed",
        "response-half"
        | "response-changes-address"
        | "response-changes-handle"
        | "response-changes-length" => "partial message, transport error",
        "response-longer"
        | "response-shorter"
        | "response-empty"
        | "response-offset-1"
        | "response-never"
        | "response-other-address"
        | "response-other-handle"
        | "response-other-length" => "transport error",
        _ => panic!("{lie} is no answer to a read"),
    }
}
