//! Every return code that the guide lists for every call: the C test that provokes it, or why this
//! version never gives it. docs/spec/vipl-calls.md is written from this table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// What is known of one return code of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proof {
    /// A C program of this directory and the function in it that sees the code.
    Test(&'static str, &'static str),
    /// Why it cannot occur.
    Never(&'static str),
}

/// A call, its clause of the guide, and its return codes in the guide's order.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) clause: &'static str,
    pub(crate) answers: &'static [(&'static str, Proof)],
}

use Proof::{Never, Test};

/// Reasons that several calls share.
const NO_PARTITIONS: &str =
    "a partition of the network is not told from silence: the VI learns of it by CONN_LOST";
const ONLY_LOCAL: &str = "works on what exists already and takes no resource that could run out";
const ONLY_HEAP: &str = "takes nothing but heap memory; without any the process ends";
const NO_QOS: &str = "no quality of service is offered, so that none can differ: VIs have none";

const SUCCESS: &str = "VIP_SUCCESS";
const NOT_DONE: &str = "VIP_NOT_DONE";
const INVALID_PARAMETER: &str = "VIP_INVALID_PARAMETER";
const ERROR_RESOURCE: &str = "VIP_ERROR_RESOURCE";
const TIMEOUT: &str = "VIP_TIMEOUT";
const REJECT: &str = "VIP_REJECT";
const INVALID_RELIABILITY_LEVEL: &str = "VIP_INVALID_RELIABILITY_LEVEL";
const INVALID_MTU: &str = "VIP_INVALID_MTU";
const INVALID_QOS: &str = "VIP_INVALID_QOS";
const INVALID_PTAG: &str = "VIP_INVALID_PTAG";
const INVALID_RDMAREAD: &str = "VIP_INVALID_RDMAREAD";
const DESCRIPTOR_ERROR: &str = "VIP_DESCRIPTOR_ERROR";
const INVALID_STATE: &str = "VIP_INVALID_STATE";
const ERROR_NAMESERVICE: &str = "VIP_ERROR_NAMESERVICE";
const NO_MATCH: &str = "VIP_NO_MATCH";
const NOT_REACHABLE: &str = "VIP_NOT_REACHABLE";

/// The calls that the library exports, in the guide's order.
#[rustfmt::skip]
pub(crate) const CALLS: &[Call] = &[
    Call { name: "VipOpenNic", clause: "3.1.1", answers: &[
        (SUCCESS, Test("args", "open_and_names")),
        (ERROR_RESOURCE, Test("limits", "unusable_configurations")),
        (INVALID_PARAMETER, Test("args", "open_and_names")),
    ] },
    Call { name: "VipCloseNic", clause: "3.1.2", answers: &[
        (SUCCESS, Test("closing", "everything_open")),
        (INVALID_PARAMETER, Test("args", "nic_calls")),
    ] },
    Call { name: "VipCreateVi", clause: "3.2.1", answers: &[
        (SUCCESS, Test("args", "create_vi")),
        (ERROR_RESOURCE, Test("limits", "virtual_interfaces")),
        (INVALID_PARAMETER, Test("args", "create_vi")),
        (INVALID_RELIABILITY_LEVEL, Test("args", "create_vi")),
        (INVALID_MTU, Test("args", "create_vi")),
        (INVALID_QOS, Test("args", "create_vi")),
        (INVALID_PTAG, Test("args", "create_vi")),
        (INVALID_RDMAREAD, Test("args", "create_vi")),
    ] },
    Call { name: "VipDestroyVi", clause: "3.2.2", answers: &[
        (SUCCESS, Test("args", "create_vi")),
        (INVALID_PARAMETER, Test("args", "vi_calls")),
        (INVALID_STATE, Test("connect", "disconnecting")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
    Call { name: "VipConnectWait", clause: "3.3.1", answers: &[
        (SUCCESS, Test("connect", "addresses")),
        (TIMEOUT, Test("args", "address_calls")),
        (ERROR_RESOURCE, Test("failure", "calls_afterwards")),
        (INVALID_PARAMETER, Test("args", "address_calls")),
    ] },
    Call { name: "VipConnectAccept", clause: "3.3.2", answers: &[
        (SUCCESS, Test("connect", "addresses")),
        (INVALID_PARAMETER, Test("connect", "conflicts")),
        (INVALID_RELIABILITY_LEVEL, Test("connect", "conflicts")),
        (INVALID_MTU, Test("connect", "conflicts")),
        (INVALID_QOS, Never(NO_QOS)),
        (TIMEOUT, Test("connect", "refusals")),
        (ERROR_RESOURCE, Never("the request and the VI hold all that a connection needs")),
        (INVALID_STATE, Test("connect", "conflicts")),
        (NOT_REACHABLE, Never("a client that cannot be reached any more is VIP_TIMEOUT")),
    ] },
    Call { name: "VipConnectReject", clause: "3.3.3", answers: &[
        (SUCCESS, Test("connect", "refusals")),
        (INVALID_PARAMETER, Test("connect", "addresses")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
        (NOT_REACHABLE, Never("whether the answer arrives makes no difference here: there is no connection")),
    ] },
    Call { name: "VipConnectRequest", clause: "3.3.4", answers: &[
        (SUCCESS, Test("connect", "request_run")),
        (TIMEOUT, Test("connect", "request_run")),
        (ERROR_RESOURCE, Test("limits", "request_run")),
        (INVALID_PARAMETER, Test("args", "address_calls")),
        (REJECT, Test("connect", "request_run")),
        (NO_MATCH, Test("args", "address_calls")),
        (INVALID_STATE, Test("connect", "addresses")),
        (NOT_REACHABLE, Test("connect", "refusals")),
    ] },
    Call { name: "VipDisconnect", clause: "3.3.5", answers: &[
        (SUCCESS, Test("connect", "disconnecting")),
        (INVALID_PARAMETER, Test("closing", "everything_open")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
        (NOT_REACHABLE, Never("the VI is Idle at once; the other end is told as often as it takes, without the caller")),
    ] },
    Call { name: "VipCreatePtag", clause: "3.4.1", answers: &[
        (SUCCESS, Test("args", "memory_calls")),
        (ERROR_RESOURCE, Test("limits", "protection_tags")),
        (INVALID_PARAMETER, Test("args", "memory_calls")),
    ] },
    Call { name: "VipDestroyPtag", clause: "3.4.2", answers: &[
        (SUCCESS, Test("args", "memory_calls")),
        (ERROR_RESOURCE, Test("args", "memory_calls")),
        (INVALID_PARAMETER, Test("args", "memory_calls")),
    ] },
    Call { name: "VipRegisterMem", clause: "3.4.3", answers: &[
        (SUCCESS, Test("args", "memory_calls")),
        (ERROR_RESOURCE, Test("limits", "regions")),
        (INVALID_PARAMETER, Test("args", "memory_calls")),
        (INVALID_PTAG, Test("args", "memory_calls")),
        (INVALID_RDMAREAD, Never("RDMA reads are supported; at which reliability level is a matter of the VI")),
    ] },
    Call { name: "VipDeregisterMem", clause: "3.4.4", answers: &[
        (SUCCESS, Test("args", "memory_calls")),
        (INVALID_PARAMETER, Test("args", "memory_calls")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
    Call { name: "VipPostSend", clause: "3.5.1", answers: &[
        (SUCCESS, Test("loop", "messages_of_all_sizes")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
    ] },
    Call { name: "VipSendDone", clause: "3.5.2", answers: &[
        (SUCCESS, Test("loop", "completion_queue")),
        (DESCRIPTOR_ERROR, Test("args", "queue_calls")),
        (NOT_DONE, Test("limits", "long_message")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
    ] },
    Call { name: "VipSendWait", clause: "3.5.3", answers: &[
        (SUCCESS, Test("loop", "in_order")),
        (DESCRIPTOR_ERROR, Test("errors", "sent")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
        (TIMEOUT, Test("limits", "long_message")),
        (ERROR_RESOURCE, Test("loop", "completion_queue")),
    ] },
    Call { name: "VipPostRecv", clause: "3.5.4", answers: &[
        (SUCCESS, Test("loop", "messages_of_all_sizes")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
    ] },
    Call { name: "VipRecvDone", clause: "3.5.5", answers: &[
        (SUCCESS, Test("loop", "completion_queue")),
        (DESCRIPTOR_ERROR, Test("connect", "flushed_in_order")),
        (NOT_DONE, Test("connect", "disconnecting")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
    ] },
    Call { name: "VipRecvWait", clause: "3.5.6", answers: &[
        (SUCCESS, Test("loop", "in_order")),
        (DESCRIPTOR_ERROR, Test("loop", "waits")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
        (TIMEOUT, Test("loop", "waits")),
        (ERROR_RESOURCE, Test("loop", "completion_queue")),
    ] },
    Call { name: "VipCQDone", clause: "3.5.7", answers: &[
        (SUCCESS, Test("loop", "completion_queue")),
        (NOT_DONE, Test("args", "queue_calls")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
    ] },
    Call { name: "VipCQWait", clause: "3.5.8", answers: &[
        (SUCCESS, Test("loop", "completion_queue")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
        (TIMEOUT, Test("loop", "waits")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
    Call { name: "VipCreateCQ", clause: "3.6.1", answers: &[
        (SUCCESS, Test("args", "queue_calls")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
        (ERROR_RESOURCE, Test("limits", "completion_queues")),
    ] },
    Call { name: "VipDestroyCQ", clause: "3.6.2", answers: &[
        (SUCCESS, Test("args", "queue_calls")),
        (INVALID_PARAMETER, Test("args", "queue_calls")),
        (ERROR_RESOURCE, Test("loop", "completion_queue")),
    ] },
    Call { name: "VipQueryNic", clause: "3.7.1", answers: &[
        (SUCCESS, Test("args", "open_and_names")),
        (INVALID_PARAMETER, Test("args", "open_and_names")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
    Call { name: "VipSetViAttributes", clause: "3.7.2", answers: &[
        (SUCCESS, Test("attributes", "vi_attributes_one_by_one")),
        (INVALID_PARAMETER, Test("attributes", "vi_attributes_one_by_one")),
        (INVALID_STATE, Test("attributes", "vi_states")),
        (INVALID_RELIABILITY_LEVEL, Test("attributes", "vi_attributes_one_by_one")),
        (INVALID_MTU, Test("attributes", "vi_attributes_one_by_one")),
        (INVALID_QOS, Test("attributes", "vi_attributes_one_by_one")),
        (INVALID_PTAG, Test("attributes", "vi_attributes_one_by_one")),
        (INVALID_RDMAREAD, Test("attributes", "vi_attributes_one_by_one")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
    Call { name: "VipQueryVi", clause: "3.7.3", answers: &[
        (SUCCESS, Test("args", "query_vi")),
        (INVALID_PARAMETER, Test("args", "query_vi")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
    Call { name: "VipSetMemAttributes", clause: "3.7.4", answers: &[
        (SUCCESS, Test("attributes", "mem_attributes")),
        (INVALID_PARAMETER, Test("attributes", "mem_attributes")),
        (INVALID_PTAG, Test("attributes", "mem_attributes")),
        (INVALID_RDMAREAD, Test("attributes", "mem_attributes")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
    Call { name: "VipQueryMem", clause: "3.7.5", answers: &[
        (SUCCESS, Test("args", "memory_calls")),
        (INVALID_PARAMETER, Test("args", "memory_calls")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
    Call { name: "VipQuerySystemManagementInfo", clause: "3.7.6", answers: &[
        (SUCCESS, Test("attributes", "autodiscovery")),
        (INVALID_PARAMETER, Test("attributes", "autodiscovery")),
        (ERROR_RESOURCE, Test("attributes", "autodiscovery")),
    ] },
    Call { name: "VipErrorCallback", clause: "3.8.1", answers: &[
        (SUCCESS, Test("errors", "default_handler")),
        (INVALID_PARAMETER, Test("args", "nic_calls")),
        (ERROR_RESOURCE, Never("the thread that calls handlers runs since the NIC was opened")),
    ] },
    Call { name: "VipNSInit", clause: "3.9.1", answers: &[
        (SUCCESS, Test("args", "name_calls")),
        (INVALID_PARAMETER, Test("args", "name_calls")),
        (ERROR_NAMESERVICE, Test("args", "name_calls")),
        (ERROR_RESOURCE, Never("a hosts file that cannot be used is VIP_INVALID_PARAMETER; beside it only heap memory is needed")),
    ] },
    Call { name: "VipNSGetHostByName", clause: "3.9.2", answers: &[
        (SUCCESS, Test("args", "name_calls")),
        (ERROR_NAMESERVICE, Test("args", "name_calls")),
        (INVALID_PARAMETER, Test("args", "name_calls")),
        (ERROR_RESOURCE, Never(ONLY_HEAP)),
    ] },
    Call { name: "VipNSGetHostByAddr", clause: "3.9.3", answers: &[
        (SUCCESS, Test("args", "name_calls")),
        (ERROR_NAMESERVICE, Test("args", "name_calls")),
        (INVALID_PARAMETER, Test("args", "name_calls")),
        (ERROR_RESOURCE, Never(ONLY_HEAP)),
    ] },
    Call { name: "VipNSShutdown", clause: "3.9.4", answers: &[
        (SUCCESS, Test("args", "name_calls")),
        (ERROR_NAMESERVICE, Test("args", "name_calls")),
        (INVALID_PARAMETER, Test("args", "nic_calls")),
        (ERROR_RESOURCE, Never(ONLY_LOCAL)),
    ] },
];

/// Holds what a program has printed about its calls against the table: every code that the table
/// says it provokes has been seen in the function named, and no call has answered anything that
/// the guide does not list for it or that the table calls impossible.
pub(crate) fn check(program: &str, printed: &str) {
    let seen: BTreeSet<(&str, &str, &str)> = printed
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("answer  ")?.split(' ');
            Some((words.next()?, words.next()?, words.next()?))
        })
        .collect();
    for (function, call, code) in &seen {
        let answers = CALLS.iter().find(|c| c.name == *call).map(|c| c.answers);
        let proof = answers.and_then(|a| a.iter().find(|(listed, _)| listed == code));
        assert!(
            matches!(proof, Some((_, Test(..)))),
            "{program}.c, {function}: {call} answers {code}, for which the table has {proof:?}"
        );
    }
    for call in CALLS {
        for (code, proof) in call.answers {
            if let Test(wanted, function) = proof {
                assert!(
                    *wanted != program || seen.contains(&(*function, call.name, *code)),
                    "{program}.c, {function} does not see {} answer {code}",
                    call.name
                );
            }
        }
    }
}

/// The programs that the table names.
pub(crate) fn programs() -> BTreeSet<&'static str> {
    let proofs = CALLS.iter().flat_map(|call| call.answers);
    proofs
        .filter_map(|(_, proof)| match proof {
            Test(program, _) => Some(*program),
            Never(_) => None,
        })
        .collect()
}

/// The table as a document.
pub(crate) fn document() -> String {
    let mut text = String::from(
        "# Return codes of the calls\n\n\
         Every return code that the VI Architecture Developer's Guide lists for the calls of this version, and where\n\
         it is proved. The tests are C programs in [vipl/capi/tests/c](../../vipl/capi/tests/c); each notes which call\n\
         answered what in which of its functions, and that is held against this table. A code that the guide does not\n\
         list for a call is never given.\n\n\
         This file is written from `vipl/capi/tests/common/calls.rs` by\n\
         `VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl-capi --test calls`.\n\n\
         | call | return code | clause | test, or why it does not occur |\n\
         | --- | --- | --- | --- |\n",
    );
    for call in CALLS {
        for (code, proof) in call.answers {
            let told = match proof {
                Test(program, function) => format!("`{program}.c`: `{function}`"),
                Never(reason) => format!("never: {reason}"),
            };
            writeln!(
                text,
                "| `{}` | `{code}` | VIPL {} | {told} |",
                call.name, call.clause
            )
            .expect("a string takes everything");
        }
    }
    text
}
