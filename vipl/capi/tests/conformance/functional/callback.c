/* Asynchronous errors and their handler. */
#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

/* Posts an invalid descriptor: the call succeeds, and an asynchronous error is reported. */
static void bad_post(VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle, bool send, const char *what)
{
    VIP_DESCRIPTOR *recv = arena_descriptor(&local_arena, 0);
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_clear();
    pair_open(&pair, &plain);
    CHECK_RETURN(VipPostRecv(pair.client, recv, local_arena.handle), VIP_SUCCESS);
    VIP_RETURN result = send ? VipPostSend(pair.client, descriptor, handle)
                             : VipPostRecv(pair.client, descriptor, handle);
    CHECK(result == VIP_SUCCESS, "%s: the call returns %s", what, return_name((int)result));
    if (expect_error(pair.client, VIP_ERROR_POST_DESC, &error))
        CHECK(error.NicHandle == local_device.nic && error.DescriptorPtr == descriptor &&
                  error.ResourceCode == VIP_RESOURCE_DESCRIPTOR &&
                  error.OpCode == (send ? VIP_STATUS_OP_SEND : VIP_STATUS_OP_RECEIVE),
              "%s: the error names NIC, VI, descriptor and operation", what);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK((received(pair.client, recv) & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
          "%s: the posted receive is flushed", what);
    vi_reaches(pair.server, VIP_STATE_ERROR);
    pair_close(&pair);
}

static void bad_posts(void)
{
    static VIP_DESCRIPTOR outside[2];
    unsigned char *buffer = arena_bytes(&local_arena, 256);
    VIP_DESCRIPTOR *odd = (VIP_DESCRIPTOR *)(void *)(buffer + 8),
                   *good = arena_descriptor(&local_arena, 1);
    VIP_DESCRIPTOR *after = (VIP_DESCRIPTOR *)(void *)(local_arena.base + local_arena.bytes);

    describe(good, buffer, local_arena.handle, 16);
    for (int send = 0; send < 2; send++) {
        bad_post(odd, local_arena.handle, send, "misaligned descriptor");
        bad_post(outside, local_arena.handle, send, "descriptor outside the region");
        bad_post(after, local_arena.handle, send, "descriptor after the region");
        bad_post(good, local_arena.handle + 1, send, "invalid memory handle");
        bad_post(good, 0, send, "memory handle 0");
        bad_post((VIP_DESCRIPTOR *)64, local_arena.handle, send, "invalid address");
        bad_post(NULL, local_arena.handle, send, "no descriptor");
    }
}

/* NULL restores the default handler; each NIC handle has its own handler. */
static void registering(void)
{
    Pair pair;

    CHECK_RETURN(VipErrorCallback(NULL, NULL, NULL), INVALID);
    CHECK_RETURN(VipErrorCallback(local_device.nic, NULL, NULL), VIP_SUCCESS);
    pair_open(&pair, &plain);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK(errors_count(pair.client, VIP_ERROR_CONN_LOST) == 0, "the old handler is not called");
    pair_close(&pair);
    errors_register(&local_device);
}

static const Test tests[] = {
    TEST(bad_posts, .clauses = "3.8.1 6.3.1 3.5.1 3.5.4",
         .returns = "VipPostSend SUCCESS; VipPostRecv SUCCESS"),
    TEST(registering, .clauses = "3.8.1", .returns = "VipErrorCallback SUCCESS INVALID_PARAMETER"),
};

SUITE_MAIN(tests)
