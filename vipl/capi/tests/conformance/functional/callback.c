/* Asynchronous errors and their callback. */
#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

/* A descriptor that cannot be taken at all: the call succeeds, the handler is told. */
static void bad_post(VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle, bool send, const char *what)
{
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_forget();
    pair_open(&pair, &plain);
    VIP_RETURN answer = send ? VipPostSend(pair.client, descriptor, handle)
                             : VipPostRecv(pair.client, descriptor, handle);
    CHECK(answer == VIP_SUCCESS, "%s: the call itself answers %s", what, return_name((int)answer));
    if (error_expected(pair.client, VIP_ERROR_POST_DESC, &error))
        CHECK(error.NicHandle == here.nic && error.DescriptorPtr == descriptor &&
                  error.ResourceCode == VIP_RESOURCE_DESCRIPTOR,
              "%s: the error names NIC, VI and descriptor", what);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    vi_reaches(pair.server, VIP_STATE_ERROR);
    pair_close(&pair);
}

static void bad_posts(void)
{
    static VIP_DESCRIPTOR outside[2];
    unsigned char *room = arena_bytes(&mine, 256);
    VIP_DESCRIPTOR *odd = (VIP_DESCRIPTOR *)(void *)(room + 8), *good = arena_descriptor(&mine, 1);
    VIP_DESCRIPTOR *behind = (VIP_DESCRIPTOR *)(void *)(mine.base + mine.bytes);

    describe(good, room, mine.handle, 16);
    for (int send = 0; send < 2; send++) {
        bad_post(odd, mine.handle, send, "misaligned descriptor");
        bad_post(outside, mine.handle, send, "descriptor outside the region");
        bad_post(behind, mine.handle, send, "descriptor behind the region");
        bad_post(good, mine.handle + 1, send, "made-up memory handle");
        bad_post(good, 0, send, "memory handle 0");
        bad_post((VIP_DESCRIPTOR *)64, mine.handle, send, "made-up address");
        bad_post(NULL, mine.handle, send, "no descriptor");
    }
}

/* NULL brings the default handler back; handlers are of one opening. */
static void registering(void)
{
    Pair pair;

    CHECK_RETURN(VipErrorCallback(NULL, NULL, NULL), INVALID);
    CHECK_RETURN(VipErrorCallback(here.nic, NULL, NULL), VIP_SUCCESS);
    pair_open(&pair, &plain);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK(errors_of(pair.client, VIP_ERROR_CONN_LOST) == 0, "the old handler is not called");
    pair_close(&pair);
    errors_catch(&here);
}

static const Test tests[] = {
    TEST(bad_posts, .clauses = "3.8.1 6.3.1 3.5.1 3.5.4",
         .answers = "VipPostSend SUCCESS; VipPostRecv SUCCESS"),
    TEST(registering, .clauses = "3.8.1", .answers = "VipErrorCallback SUCCESS INVALID_PARAMETER"),
};

SUITE_MAIN(tests)
