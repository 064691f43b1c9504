/* The calls of viaduct.h on VIs: what VI/TCP offers beyond the guide, and the users of local peers. */
#include <string.h>
#include <unistd.h>

#include <viaduct.h>

#include "fixture.h"

enum { LONG_BYTES = 32768, SHORT_BYTES = 4096 };

static const PairOptions longer = {.max_transfer_bytes = LONG_BYTES};
static const PairOptions shorter = {.max_transfer_bytes = SHORT_BYTES};

static viaduct_choices everything(const char *security)
{
    viaduct_choices choices = {.flow_control = VIP_TRUE, .negotiates = VIP_TRUE};

    choices.security_bytes = strlen(security);
    memcpy(choices.security, security, choices.security_bytes);
    return choices;
}

static bool says(const unsigned char *security, VIP_ULONG bytes, const char *expected)
{
    return bytes == strlen(expected) && memcmp(security, expected, bytes) == 0;
}

/* Both ends are VIs of this program. */
static VIP_UINT32 expected_user(void)
{
    return geteuid();
}

/* What is asked for is told back; what cannot be is refused, and changes nothing. */
static void choosing(void)
{
    VIP_VI_HANDLE vi = client_create(&longer);
    viaduct_choices choices, found;
    viaduct_agreement agreement;
    VIP_UINT32 user = 7;
    VIP_ULONG bytes;

    CHECK_RETURN(viaduct_get_choices(vi, &found), VIP_SUCCESS);
    CHECK(!found.flow_control && !found.negotiates && found.security_bytes == 0,
          "a new VI wants nothing");
    choices = everything("who I am");
    CHECK_RETURN(viaduct_set_choices(vi, &choices), VIP_SUCCESS);
    choices.security_bytes = VIADUCT_MAX_SECURITY_BYTES + 1;
    CHECK_RETURN(viaduct_set_choices(vi, &choices), VIP_INVALID_PARAMETER);
    choices.security_bytes = (VIP_ULONG)-1;
    CHECK_RETURN(viaduct_set_choices(vi, &choices), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_set_choices(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_set_choices(NULL, &choices), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_set_choices(here.nic, &choices), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_choices(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_choices(NULL, &found), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_choices(vi, &found), VIP_SUCCESS);
    CHECK(found.flow_control && found.negotiates &&
              says(found.security, found.security_bytes, "who I am"),
          "the choices of before");
    CHECK_RETURN(viaduct_get_agreement(vi, &agreement), VIP_INVALID_STATE);
    CHECK_RETURN(viaduct_get_agreement(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_agreement(NULL, &agreement), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_security(NULL, found.security, &bytes),
                 VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_user(NULL, &user), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_peer_user(NULL, &user), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_peer_user(here.nic, &user), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_peer_user(vi, &user), VIP_INVALID_STATE);
    CHECK(user == 7, "a call that fails writes nothing");
    vi_close(vi);
}

/* Two VIs of different transfer sizes, connected; each end knows what the other one said. */
static void agreeing(void)
{
    Pair pair = {client_create(&longer), server_create(&shorter)};
    viaduct_choices asks = everything("the client"), answers = everything("the server");
    viaduct_agreement agreement;
    unsigned char security[VIADUCT_MAX_SECURITY_BYTES];
    VIP_ULONG bytes = 0;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE conn;
    VIP_UINT32 user = 7;
    char discriminator[32];
    Address address, remote;

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&there, discriminator, &address);
    REQUIRE_RETURN(viaduct_set_choices(pair.client, &asks), VIP_SUCCESS);
    REQUIRE_RETURN(viaduct_set_choices(pair.server, &answers), VIP_SUCCESS);
    Request *request = request_start(pair.client, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(there.nic, &address.address, WAIT_MS, &remote.address, &attributes,
                                  &conn),
                   VIP_SUCCESS);
    CHECK_RETURN(viaduct_get_request_security(conn, NULL, &bytes), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_security(conn, security, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_security(conn, security, &bytes), VIP_SUCCESS);
    CHECK(says(security, bytes, "the client"), "what the client said, %lu bytes", bytes);
    CHECK_RETURN(viaduct_get_request_user(conn, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_user(conn, &user), VIP_SUCCESS);
    CHECK(user == expected_user(), "the client's user, %u", user);
    REQUIRE_RETURN(VipConnectAccept(conn, pair.server), VIP_SUCCESS);
    CHECK_RETURN(viaduct_get_request_user(conn, &user), VIP_INVALID_PARAMETER);
    REQUIRE_RETURN(request_finish(request, &attributes), VIP_SUCCESS);
    CHECK(attributes.MaxTransferSize == SHORT_BYTES, "the client is told what was agreed");
    CHECK_RETURN(viaduct_get_peer_user(pair.server, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_peer_user(pair.server, &user), VIP_SUCCESS);
    CHECK(user == expected_user(), "the user at the other end, %u", user);

    REQUIRE_RETURN(viaduct_get_agreement(pair.client, &agreement), VIP_SUCCESS);
    CHECK(agreement.flow_control && agreement.max_transfer_bytes == SHORT_BYTES &&
              says(agreement.security, agreement.security_bytes, "the server"),
          "what the client's end has agreed on");
    REQUIRE_RETURN(viaduct_get_agreement(pair.server, &agreement), VIP_SUCCESS);
    CHECK(agreement.flow_control && agreement.max_transfer_bytes == SHORT_BYTES &&
              says(agreement.security, agreement.security_bytes, "the client"),
          "what the server's end has agreed on");
    CHECK_RETURN(viaduct_set_choices(pair.client, &asks), VIP_INVALID_STATE);

    /* Before there is a receive. */
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 1), *receive = arena_descriptor(&theirs, 1);
    VIP_DESCRIPTOR *none;
    unsigned char *from = arena_bytes(&mine, SHORT_BYTES), *to = arena_bytes(&theirs, SHORT_BYTES);
    fill(from, SHORT_BYTES, 1);
    describe(send, from, mine.handle, SHORT_BYTES);
    REQUIRE_RETURN(VipPostSend(pair.client, send, mine.handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendDone(pair.client, &none), VIP_NOT_DONE);
    describe(receive, to, theirs.handle, SHORT_BYTES);
    REQUIRE_RETURN(VipPostRecv(pair.server, receive, theirs.handle), VIP_SUCCESS);
    received(pair.server, receive);
    sent(pair.client, send);
    CHECK(filled(to, SHORT_BYTES, 1), "the message is whole");
    pair_close(&pair);
}

/* VIs that speak FC-VI have nothing of it. */
static void frames(void)
{
    fixture_use_here("SMALL");
    VIP_VI_HANDLE vi = client_create(&longer);
    viaduct_choices choices = everything("");
    viaduct_agreement agreement;

    CHECK_RETURN(viaduct_get_choices(vi, &choices), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_set_choices(vi, &choices), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_agreement(vi, &agreement), VIP_INVALID_PARAMETER);
    vi_close(vi);
    fixture_use_end();
}

int main(void)
{
    fixture_open();
    choosing();
    agreeing();
    fixture_reset();
    frames();
    fixture_close();
    return check_summary();
}
