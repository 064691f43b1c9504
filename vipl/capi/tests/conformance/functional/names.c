/* The name service. */
#include <stdio.h>
#include <string.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

static void write_hosts(char *path, size_t path_bytes)
{
    snprintf(path, path_bytes, "%s/hosts", test_directory());
    FILE *file = fopen(path, "w");

    REQUIRE(file != NULL, "a file for host names");
    fprintf(file, "# only in this file\n192.0.2.7 onlyhere Alias\n192.0.2.8 onlyhere\n");
    REQUIRE(fclose(file) == 0, "the file is written");
}

static void init_and_shutdown(void)
{
    VIP_NIC_HANDLE nic = local_device.nic;
    char path[512], name[] = "onlyhere";
    VIP_ULONG length = 0;
    Address address;

    write_hosts(path, sizeof path);
    memset(&address, 0, sizeof address);
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 0), VIP_ERROR_NAMESERVICE);
    address_of(&local_device, "", &address);
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, path, &length), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSShutdown(nic), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSInit(nic, (char[]){"/no/such/file"}), INVALID);
    CHECK_RETURN(VipNSInit(NULL, path), INVALID);
    CHECK_RETURN(VipNSInit(nic, path), VIP_SUCCESS);
    CHECK_RETURN(VipNSInit(nic, path), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSShutdown(NULL), INVALID);
    CHECK_RETURN(VipNSShutdown(nic), VIP_SUCCESS);
    CHECK_RETURN(VipNSShutdown(nic), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSInit(nic, NULL), VIP_SUCCESS);
    CHECK_RETURN(VipNSShutdown(nic), VIP_SUCCESS);
    remove(path);
}

static void addresses_of_names(void)
{
    static const VIP_UINT8 mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 7};
    VIP_NIC_HANDLE nic = local_device.nic;
    char path[512], name[] = "ONLYHERE", alias[] = "alias", unknown[] = "no.such.host";
    char localhost[] = "localhost";
    Address address;

    write_hosts(path, sizeof path);
    REQUIRE_RETURN(VipNSInit(nic, path), VIP_SUCCESS);
    memset(&address, 0xEE, sizeof address);
    address.address.HostAddressLen = 0;
    CHECK_RETURN(VipNSGetHostByName(nic, NULL, &address.address, 0), INVALID);
    CHECK_RETURN(VipNSGetHostByName(nic, name, NULL, 0), INVALID);
    CHECK_RETURN(VipNSGetHostByName(nic, unknown, &address.address, 0), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 2), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, ~0ul), VIP_ERROR_NAMESERVICE);
    address.address.HostAddressLen = 15;
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 0), INVALID);
    address.address.HostAddressLen = 0;
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 1), VIP_SUCCESS);
    CHECK(address.bytes[4 + 15] == 8, "the second address");
    CHECK_RETURN(VipNSGetHostByName(nic, alias, &address.address, 0), VIP_SUCCESS);
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 0), VIP_SUCCESS);
    CHECK(address.address.HostAddressLen == 16 && address.address.DiscriminatorLen == 0xEEEE &&
              memcmp(address.bytes + 4, mapped, 16) == 0 && address.bytes[20] == 0xEE,
          "the host part is written, and nothing else");
    CHECK_RETURN(VipNSGetHostByName(nic, localhost, &address.address, 0), VIP_SUCCESS);
    CHECK(memcmp(address.bytes + 4, local_device.attributes.LocalNicAddress, 16) == 0,
          "localhost is the address of this NIC");
    CHECK_RETURN(VipNSShutdown(nic), VIP_SUCCESS);
    remove(path);
}

static void names_of_addresses(void)
{
    VIP_NIC_HANDLE nic = local_device.nic;
    char path[512], name[] = "onlyhere", found[64], tiny[8] = "intact";
    VIP_ULONG length;
    Address address;

    write_hosts(path, sizeof path);
    REQUIRE_RETURN(VipNSInit(nic, path), VIP_SUCCESS);
    memset(&address, 0, sizeof address);
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 0), VIP_SUCCESS);
    length = sizeof found;
    CHECK_RETURN(VipNSGetHostByAddr(nic, NULL, found, &length), INVALID);
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, NULL, &length), INVALID);
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, found, NULL), INVALID);
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, found, &length), VIP_SUCCESS);
    CHECK(length == 8 && strcmp(found, "onlyhere") == 0, "the name is returned: %s", found);
    length = sizeof tiny;
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, tiny, &length), INVALID);
    CHECK(length == 9 && strcmp(tiny, "intact") == 0, "the capacity needed is returned: %lu",
          length);
    length = sizeof found;
    address.bytes[4 + 15] = 99;
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, found, &length), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSShutdown(nic), VIP_SUCCESS);
    remove(path);
}

/* Connections continue after the name service is stopped. */
static void connections_outlive_the_name_service(void)
{
    Pair pair;

    CHECK_RETURN(VipNSInit(local_device.nic, NULL), VIP_SUCCESS);
    pair_open(&pair, &plain);
    CHECK_RETURN(VipNSShutdown(local_device.nic), VIP_SUCCESS);
    pair_works(&pair, "after VipNSShutdown");
    pair_close(&pair);
}

static const Test tests[] = {
    TEST(init_and_shutdown, .clauses = "3.9.1 3.9.4",
         .returns = "VipNSInit SUCCESS INVALID_PARAMETER ERROR_NAMESERVICE;"
                    "VipNSShutdown SUCCESS INVALID_PARAMETER ERROR_NAMESERVICE;"
                    "VipNSGetHostByName ERROR_NAMESERVICE; VipNSGetHostByAddr ERROR_NAMESERVICE"),
    TEST(addresses_of_names, .clauses = "3.9.2",
         .returns = "VipNSGetHostByName SUCCESS INVALID_PARAMETER ERROR_NAMESERVICE"),
    TEST(names_of_addresses, .clauses = "3.9.3",
         .returns = "VipNSGetHostByAddr SUCCESS INVALID_PARAMETER ERROR_NAMESERVICE"),
    TEST(connections_outlive_the_name_service, .clauses = "3.9.4",
         .returns = "VipNSShutdown SUCCESS"),
};

SUITE_MAIN(tests)
