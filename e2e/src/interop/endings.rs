//! Expected effects of malformed messages on the receiving VI (docs/spec/vitcp.md, Errors).

/// Checks the ending of a connection that `vi-peer` has printed after a case of `malformed.py`.
///
/// `outcome` is the outcome that `malformed.py` has printed; `in_pieces`: the message was sent byte by byte.
///
/// # Panics
/// If it differs from the expected ending.
pub fn assert_ending(found: &str, case: &str, level: &str, outcome: &str, in_pieces: bool) {
    let expected = expected_ending(case, level, outcome);
    // If there are too many bytes, the valid ones may be written before the others arrive.
    let is_partial = in_pieces && case.ends_with("-longer-than-length");
    let up_to_state = |text: &str| match is_partial {
        true => text.split("; Error").next().map(str::to_owned),
        false => Some(text.to_owned()),
    };
    assert_eq!(
        up_to_state(found),
        up_to_state(&expected),
        "{case} at {level}, outcome {outcome}"
    );
}

/// Returns the ending that `vi-peer observe` and `vi-peer commands` print, without the part about sends.
///
/// All well-formed messages of a connection are acknowledged before it ends.
fn expected_ending(case: &str, level: &str, outcome: &str) -> String {
    let is_unreliable = level == "ud";
    let is_write = case.starts_with("write-");
    let is_immediate = case.starts_with("write-immediate-");
    // After a case that keeps the connection open, a probe message is echoed.
    let is_silent = matches!(case, "segment-never-sent" | "send-without-credit");
    let probes = usize::from(outcome == "open" && !is_silent);
    let complete = match case {
        "send-without-credit" => 4,
        "number-repeated-send"
        | "control-write-to-the-end"
        | "control-send-of-mtu"
        | "slow-send"
        | "endless-empty-segments" => 1,
        _ => 0,
    };
    let failed = match case {
        "transmit-error" => "partial message, transport error > ",
        "send-longer-than-mtu" => "local length error > ",
        _ if is_immediate && case.ends_with("-than-length") => {
            "partial message, transport error > "
        }
        _ if is_immediate => "local protection error > ",
        _ => "",
    };
    // All receives are used, none is flushed.
    let flushed = match case {
        "send-without-credit" => "",
        _ => "flushed",
    };
    let event = match case {
        "send-without-credit" => "RecvqEmpty, ",
        "write-longer-than-length" | "write-shorter-than-length" | "write-transmit-error"
            if !is_unreliable =>
        {
            "RdmawAbort, "
        }
        _ if is_write && !is_immediate && is_refused(case) => "RdmawProt, ",
        _ if case.starts_with("read-") && is_refused(case) && !is_unreliable => "RdmarProt, ",
        _ => "",
    };
    let written = match case {
        "control-write"
        | "write-shorter-than-length"
        | "write-immediate-shorter-than-length"
        | "write-transmit-error" => "written 0 to 15",
        // The valid bytes before the malformed segment.
        "write-changes-address" | "write-changes-handle" | "write-changes-length" => {
            "written 0 to 15"
        }
        "control-write-in-two" => "written 0 to 31",
        "control-write-to-the-end" => "written 131056 to 131071",
        _ => "nothing written",
    };
    format!(
        "received {}; receives: {failed}{flushed}; {event}ConnLost; Error; {written}",
        complete + probes
    )
}

/// Whether a case addresses invalid memory.
fn is_refused(case: &str) -> bool {
    const INVALID: [&str; 6] = [
        "-handle-unknown",
        "-address-unknown",
        "-address-wraps",
        "-over-the-end",
        "-before-the-begin",
        "-length-ffffffff",
    ];
    INVALID.iter().any(|suffix| case.ends_with(suffix))
}

/// Returns the status of an RDMA read whose response is malformed, at either reliable level.
///
/// # Panics
/// If the case is not a read response.
pub fn expected_read_status(case: &str) -> &'static str {
    match case {
        "control-response" | "control-response-in-two" | "response-immediate" => "64 bytes from 0",
        // The first response is valid, the second one is unsolicited.
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
        _ => panic!("{case}: no read response"),
    }
}
