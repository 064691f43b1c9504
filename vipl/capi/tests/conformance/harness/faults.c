#include "faults.h"

#include <stdlib.h>

#include "suite.h"

static void reserved_control(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->CS.Control |= 0x0010;
}

static void reserved_field(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->CS.Reserved = 1;
}

static void reserved_operation(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->CS.Control |= VIP_CONTROL_OP_RESERVED;
}

static void fenced_reserved_operation(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->CS.Control |= VIP_CONTROL_QFENCE | VIP_CONTROL_OP_RESERVED;
}

static void operation_of_senders(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->CS.Control |= VIP_CONTROL_OP_RDMAWRITE;
}

static void wrong_length(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->CS.Length++;
}

static void missing_handle(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->DS[0].Local.Handle = 0;
}

static void other_handle(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->DS[0].Local.Handle += 0x10001;
}

static void foreign_tag(VIP_DESCRIPTOR *d, const Arena *f)
{
    describe_segment(d, 0, f->base, f->handle, d->DS[0].Local.Length);
}

static void outside_region(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->DS[0].Local.Data.AddressBits += 1u << 30;
}

static void wrapping(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->DS[0].Local.Data.AddressBits = ~0ull - 7;
}

static void too_long(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->CS.Length = d->DS[0].Local.Length = 65537;
}

static void too_many_segments(VIP_DESCRIPTOR *d, const Arena *f)
{
    (void)f;
    d->CS.SegCount = 0xFFFF;
}

const Fault send_faults[] = {
    {"reserved Control bit", VIP_STATUS_FORMAT_ERROR, reserved_control},
    {"reserved field", VIP_STATUS_FORMAT_ERROR, reserved_field},
    {"reserved operation", VIP_STATUS_FORMAT_ERROR, reserved_operation},
    {"reserved operation with a fence", VIP_STATUS_FORMAT_ERROR, fenced_reserved_operation},
    {"Length differs from the sum", VIP_STATUS_LENGTH_ERROR, wrong_length},
    {"memory handle 0", VIP_STATUS_PROTECTION_ERROR, missing_handle},
    {"invalid memory handle", VIP_STATUS_PROTECTION_ERROR, other_handle},
    {"memory of another tag", VIP_STATUS_PROTECTION_ERROR, foreign_tag},
    {"memory outside the region", VIP_STATUS_PROTECTION_ERROR, outside_region},
    {"address that wraps around", VIP_STATUS_PROTECTION_ERROR, wrapping},
    {"more than MaxTransferSize", VIP_STATUS_LENGTH_ERROR, too_long},
    {"too many segments", VIP_STATUS_LENGTH_ERROR, too_many_segments},
};
const unsigned send_fault_count = sizeof send_faults / sizeof send_faults[0];

const Fault recv_faults[] = {
    {"reserved Control bit", VIP_STATUS_FORMAT_ERROR, reserved_control},
    {"reserved field", VIP_STATUS_FORMAT_ERROR, reserved_field},
    {"RDMA in the receive queue", VIP_STATUS_FORMAT_ERROR, operation_of_senders},
    {"invalid memory handle", VIP_STATUS_PROTECTION_ERROR, other_handle},
    {"memory of another tag", VIP_STATUS_PROTECTION_ERROR, foreign_tag},
    {"memory outside the region", VIP_STATUS_PROTECTION_ERROR, outside_region},
};
const unsigned recv_fault_count = sizeof recv_faults / sizeof recv_faults[0];

bool errors_break_connection(void)
{
    return test_level() != VIP_SERVICE_UNRELIABLE;
}

bool senders_get_remote_errors(void)
{
    return test_level() == VIP_SERVICE_RELIABLE_RECEPTION;
}

void expect_broken(const Pair *pair, const char *what)
{
    CHECK(vi_reaches(pair->client, VIP_STATE_ERROR), "%s: the client is in Error", what);
    CHECK(vi_reaches(pair->server, VIP_STATE_ERROR), "%s: the server is in Error", what);
    CHECK(expect_error(pair->client, VIP_ERROR_CONN_LOST, NULL), "%s: CONN_LOST at the client",
          what);
    CHECK(expect_error(pair->server, VIP_ERROR_CONN_LOST, NULL), "%s: CONN_LOST at the server",
          what);
}

void check_pair_after_error(Pair *pair, const char *what)
{
    if (errors_break_connection()) {
        expect_broken(pair, what);
    } else {
        CHECK(vi_state(pair->client) == VIP_STATE_CONNECTED, "%s: the client is Connected", what);
        CHECK(vi_state(pair->server) == VIP_STATE_CONNECTED, "%s: the server is Connected", what);
        CHECK(errors_count(pair->client, VIP_ERROR_CONN_LOST) == 0 &&
                  errors_count(pair->server, VIP_ERROR_CONN_LOST) == 0,
              "%s: no CONN_LOST", what);
        pair_works(pair, what);
    }
    pair_close(pair);
}

static bool senders_wait_for_recovery(void)
{
    return test_level() == VIP_SERVICE_RELIABLE_DELIVERY && getenv("VIPL_TEST_RECOVERY") != NULL;
}

void check_refused_sender(VIP_UINT32 status, VIP_UINT32 at_reliable_reception, const char *what)
{
    if (senders_wait_for_recovery()) {
        CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
              "%s: the sender's status is 0x%08X", what, status);
    } else {
        check_sender(status, at_reliable_reception, what);
    }
}

void check_sender(VIP_UINT32 status, VIP_UINT32 at_reliable_reception, const char *what)
{
    const VIP_UINT32 expected = senders_get_remote_errors() ? at_reliable_reception : 0;

    CHECK((status & VIP_STATUS_ERROR_MASK) == expected, "%s: the sender's status is 0x%08X", what,
          status);
}
