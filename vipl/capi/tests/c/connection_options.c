/* Calls of viaduct.h: connection options of VI/TCP, and user IDs of local peers. */
#include <string.h>
#include <unistd.h>

#include <viaduct.h>

#include "fixture.h"

enum { LONG_BYTES = 32768, SHORT_BYTES = 4096 };

static const PairOptions longer = {.max_transfer_bytes = LONG_BYTES};
static const PairOptions shorter = {.max_transfer_bytes = SHORT_BYTES};

static viaduct_connection_options all_options(const char *security)
{
    viaduct_connection_options options = {.flow_control = VIP_TRUE, .negotiate_mtu = VIP_TRUE};

    options.security_bytes = strlen(security);
    memcpy(options.security, security, options.security_bytes);
    return options;
}

static bool is_equal(const unsigned char *security, VIP_ULONG bytes, const char *expected)
{
    return bytes == strlen(expected) && memcmp(security, expected, bytes) == 0;
}

/* Returns the user ID of this program, which has both VIs. */
static VIP_UINT32 expected_user(void)
{
    return geteuid();
}

/* The former names of calls and types, which are deprecated. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void former_names(void)
{
    VIP_VI_HANDLE vi = client_create(&longer);
    viaduct_choices choices = {.negotiates = VIP_TRUE}, found;
    viaduct_agreement agreement;

    CHECK_RETURN(viaduct_set_choices(vi, &choices), VIP_SUCCESS);
    CHECK_RETURN(viaduct_get_choices(vi, &found), VIP_SUCCESS);
    CHECK(found.negotiates && found.negotiate_mtu && !found.flow_control, "the options set before");
    CHECK_RETURN(viaduct_get_agreement(vi, &agreement), VIP_INVALID_STATE);
    vi_close(vi);
}
#pragma GCC diagnostic pop

/* Options are returned as they were set; invalid options are refused without effect. */
static void set_and_get(void)
{
    VIP_VI_HANDLE vi = client_create(&longer);
    viaduct_connection_options options, found;
    viaduct_negotiated_options negotiated;
    VIP_UINT32 user = 7;
    VIP_ULONG bytes;

    CHECK_RETURN(viaduct_get_connection_options(vi, &found), VIP_SUCCESS);
    CHECK(!found.flow_control && !found.negotiate_mtu && found.security_bytes == 0,
          "a new VI has no options");
    options = all_options("security");
    CHECK_RETURN(viaduct_set_connection_options(vi, &options), VIP_SUCCESS);
    options.security_bytes = VIADUCT_MAX_SECURITY_BYTES + 1;
    CHECK_RETURN(viaduct_set_connection_options(vi, &options), VIP_INVALID_PARAMETER);
    options.security_bytes = (VIP_ULONG)-1;
    CHECK_RETURN(viaduct_set_connection_options(vi, &options), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_set_connection_options(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_set_connection_options(NULL, &options), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_set_connection_options(local_device.nic, &options), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_connection_options(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_connection_options(NULL, &found), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_connection_options(vi, &found), VIP_SUCCESS);
    CHECK(found.flow_control && found.negotiate_mtu &&
              is_equal(found.security, found.security_bytes, "security"),
          "the options set before");
    CHECK_RETURN(viaduct_get_negotiated_options(vi, &negotiated), VIP_INVALID_STATE);
    CHECK_RETURN(viaduct_get_negotiated_options(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_negotiated_options(NULL, &negotiated), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_security(NULL, found.security, &bytes),
                 VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_user(NULL, &user), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_peer_user(NULL, &user), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_peer_user(local_device.nic, &user), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_peer_user(vi, &user), VIP_INVALID_STATE);
    CHECK(user == 7, "a call that fails writes nothing");
    vi_close(vi);
}

/* Connects two VIs with different transfer sizes; each end obtains the options of the other. */
static void negotiating(void)
{
    Pair pair = {client_create(&longer), server_create(&shorter)};
    viaduct_connection_options client_options = all_options("the client"),
                               server_options = all_options("the server");
    viaduct_negotiated_options negotiated;
    unsigned char security[VIADUCT_MAX_SECURITY_BYTES];
    VIP_ULONG bytes = 0;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE conn;
    VIP_UINT32 user = 7;
    char discriminator[32];
    Address address, remote;

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&remote_device, discriminator, &address);
    REQUIRE_RETURN(viaduct_set_connection_options(pair.client, &client_options), VIP_SUCCESS);
    REQUIRE_RETURN(viaduct_set_connection_options(pair.server, &server_options), VIP_SUCCESS);
    Request *request = request_start(pair.client, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(remote_device.nic, &address.address, WAIT_MS, &remote.address,
                                  &attributes, &conn),
                   VIP_SUCCESS);
    CHECK_RETURN(viaduct_get_request_security(conn, NULL, &bytes), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_security(conn, security, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_security(conn, security, &bytes), VIP_SUCCESS);
    CHECK(is_equal(security, bytes, "the client"), "the client's security information, %lu bytes",
          bytes);
    CHECK_RETURN(viaduct_get_request_user(conn, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_request_user(conn, &user), VIP_SUCCESS);
    CHECK(user == expected_user(), "the client's user, %u", user);
    REQUIRE_RETURN(VipConnectAccept(conn, pair.server), VIP_SUCCESS);
    CHECK_RETURN(viaduct_get_request_user(conn, &user), VIP_INVALID_PARAMETER);
    REQUIRE_RETURN(request_finish(request, &attributes), VIP_SUCCESS);
    CHECK(attributes.MaxTransferSize == SHORT_BYTES,
          "the client obtains the negotiated transfer size");
    CHECK_RETURN(viaduct_get_peer_user(pair.server, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_peer_user(pair.server, &user), VIP_SUCCESS);
    CHECK(user == expected_user(), "the user of the peer, %u", user);

    REQUIRE_RETURN(viaduct_get_negotiated_options(pair.client, &negotiated), VIP_SUCCESS);
    CHECK(negotiated.flow_control && negotiated.max_transfer_bytes == SHORT_BYTES &&
              is_equal(negotiated.security, negotiated.security_bytes, "the server"),
          "the negotiated options of the client");
    REQUIRE_RETURN(viaduct_get_negotiated_options(pair.server, &negotiated), VIP_SUCCESS);
    CHECK(negotiated.flow_control && negotiated.max_transfer_bytes == SHORT_BYTES &&
              is_equal(negotiated.security, negotiated.security_bytes, "the client"),
          "the negotiated options of the server");
    CHECK_RETURN(viaduct_set_connection_options(pair.client, &client_options), VIP_INVALID_STATE);

    /* Flow control: a send before its receive. */
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *receive = arena_descriptor(&remote_arena, 1);
    VIP_DESCRIPTOR *none;
    unsigned char *from = arena_bytes(&local_arena, SHORT_BYTES),
                  *to = arena_bytes(&remote_arena, SHORT_BYTES);
    fill(from, SHORT_BYTES, 1);
    describe(send, from, local_arena.handle, SHORT_BYTES);
    REQUIRE_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendDone(pair.client, &none), VIP_NOT_DONE);
    describe(receive, to, remote_arena.handle, SHORT_BYTES);
    REQUIRE_RETURN(VipPostRecv(pair.server, receive, remote_arena.handle), VIP_SUCCESS);
    received(pair.server, receive);
    sent(pair.client, send);
    CHECK(filled(to, SHORT_BYTES, 1), "the message is complete");
    pair_close(&pair);
}

/* The calls fail for VIs of an FC-VI NIC. */
static void fc_vi_nic_is_refused(void)
{
    fixture_use_one_process("SMALL");
    VIP_VI_HANDLE vi = client_create(&longer);
    viaduct_connection_options options = all_options("");
    viaduct_negotiated_options negotiated;

    CHECK_RETURN(viaduct_get_connection_options(vi, &options), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_set_connection_options(vi, &options), VIP_INVALID_PARAMETER);
    CHECK_RETURN(viaduct_get_negotiated_options(vi, &negotiated), VIP_INVALID_PARAMETER);
    vi_close(vi);
    fixture_use_end();
}

int main(void)
{
    fixture_open();
    set_and_get();
    former_names();
    negotiating();
    fixture_reset();
    fc_vi_nic_is_refused();
    fixture_close();
    return check_summary();
}
