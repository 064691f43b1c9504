/*
 * A process of a full mesh, with a VI to every other process: mesh RANK OWN-HOST HOST... The hosts
 * are those of the ranks in order, as addresses or names of the hosts file; the process with the
 * lower rank is the server of a connection. Memory of every kind is registered: stack, heap, mapped
 * memory and System V shared memory, selected by the two ranks, so that four processes use all
 * kinds. For each peer, one thread sends while another polls VipRecvDone.
 */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 600

#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

#define PEERS 16
#define MESSAGES 50
#define BYTES 1024
#define DEPTH 8
#define KINDS 4
#define REGION 32768 /* for each peer: descriptors and data of both directions */

typedef struct {
    unsigned rank;
    VIP_VI_HANDLE vi;
    char *region;
    VIP_MEM_HANDLE handle;
    pthread_mutex_t lock;
    pthread_cond_t more;
    unsigned received_count; /* messages received and their receives posted again */
} Peer;

static Nic nic;
static unsigned own_rank, ranks;
static Peer peers[PEERS];

/* Allocates memory of a kind: stack, heap, mapped or System V. */
static char *memory_of_kind(unsigned kind, char *on_stack)
{
    size_t address;
    void *memory;
    int id;

    switch (kind) {
    case 0:
        memory = on_stack;
        break;
    case 1:
        memory = malloc(REGION + VIP_DESCRIPTOR_ALIGNMENT);
        break;
    case 2:
        memory = mmap(NULL, REGION + VIP_DESCRIPTOR_ALIGNMENT, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANON, -1, 0);
        EXPECT(memory != MAP_FAILED);
        break;
    default:
        id = shmget(IPC_PRIVATE, REGION + VIP_DESCRIPTOR_ALIGNMENT, IPC_CREAT | 0600);
        EXPECT(id >= 0);
        memory = shmat(id, NULL, 0);
        EXPECT(memory != (void *)-1);
        EXPECT(shmctl(id, IPC_RMID, NULL) == 0);
        break;
    }
    EXPECT(memory != NULL);
    address = (size_t)memory + VIP_DESCRIPTOR_ALIGNMENT - 1;
    memory = (void *)(address - address % VIP_DESCRIPTOR_ALIGNMENT);
    memset(memory, 0, REGION);
    return (char *)memory;
}

static VIP_DESCRIPTOR *descriptor_at(Peer *peer, unsigned n)
{
    return (VIP_DESCRIPTOR *)(void *)peer->region + n;
}

static char *data_at(Peer *peer, unsigned n)
{
    return peer->region + 2 * DEPTH * sizeof(VIP_DESCRIPTOR) + n * BYTES;
}

static void describe_at(Peer *peer, unsigned n)
{
    VIP_DESCRIPTOR *descriptor = descriptor_at(peer, n);

    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = 1;
    descriptor->CS.Length = BYTES;
    descriptor->DS[0].Local.Data.Address = data_at(peer, n);
    descriptor->DS[0].Local.Handle = peer->handle;
    descriptor->DS[0].Local.Length = BYTES;
}

static void peer_prepare(Peer *peer, unsigned rank, unsigned kind, char *on_stack)
{
    VIP_MEM_ATTRIBUTES attributes;
    unsigned n;

    peer->rank = rank;
    peer->received_count = 0;
    EXPECT(pthread_mutex_init(&peer->lock, NULL) == 0 && pthread_cond_init(&peer->more, NULL) == 0);
    peer->region = memory_of_kind(kind, on_stack);
    attributes.Ptag = nic.ptag;
    attributes.EnableRdmaWrite = attributes.EnableRdmaRead = VIP_FALSE;
    EXPECT_OK(VipRegisterMem(nic.nic, peer->region, REGION, &attributes, &peer->handle));
    peer->vi = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    for (n = 0; n < DEPTH; n++) {
        describe_at(peer, n);
        EXPECT_OK(VipPostRecv(peer->vi, descriptor_at(peer, n), peer->handle));
    }
}

/* An address of a host with "FROM-TO" as its discriminator. */
static VIP_NET_ADDRESS *address_of(char *host, unsigned from, unsigned to)
{
    VIP_NET_ADDRESS *address = address_alloc(&nic);
    char text[16];

    EXPECT_OK(VipNSGetHostByName(nic.nic, host, address, 0));
    sprintf(text, "mesh %u-%u", from, to);
    address->DiscriminatorLen = (VIP_UINT16)strlen(text);
    memcpy(address->HostAddress + address->HostAddressLen, text, strlen(text));
    return address;
}

static void peer_connect(Peer *peer, char *own_host, char *host)
{
    VIP_NET_ADDRESS *local, *remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_RETURN result;

    if (own_rank < peer->rank) {
        local = address_of(own_host, peer->rank, own_rank);
        remote = address_alloc(&nic);
        EXPECT_OK(VipConnectWait(nic.nic, local, WAIT_MS, remote, &attributes, &connection));
        EXPECT_OK(VipConnectAccept(connection, peer->vi));
    } else {
        local = address_of(own_host, own_rank, peer->rank);
        remote = address_of(host, own_rank, peer->rank);
        /* The peer may not listen yet. */
        do {
            result = VipConnectRequest(peer->vi, local, remote, WAIT_MS, &attributes);
            sched_yield();
        } while (result == VIP_NO_MATCH);
        EXPECT(result == VIP_SUCCESS);
    }
    free(local);
    free(remote);
}

static char byte_of(unsigned from, unsigned to, unsigned message, unsigned n)
{
    return (char)(from * 31 + to * 17 + message * 7 + n);
}

/*
 * The peer has DEPTH receives posted, and sends its message m - DEPTH / 2 only after posting again
 * the receive of our message m - DEPTH: after receiving the former, a receive for m is posted.
 */
static void *send_all(void *argument)
{
    Peer *peer = (Peer *)argument;
    VIP_DESCRIPTOR *descriptor;
    VIP_RETURN result;
    unsigned message, n;

    for (message = 0; message < MESSAGES; message++) {
        pthread_mutex_lock(&peer->lock);
        while (message >= peer->received_count + DEPTH / 2)
            pthread_cond_wait(&peer->more, &peer->lock);
        pthread_mutex_unlock(&peer->lock);
        describe_at(peer, DEPTH);
        for (n = 0; n < BYTES; n++)
            data_at(peer, DEPTH)[n] = byte_of(own_rank, peer->rank, message, n);
        EXPECT_OK(VipPostSend(peer->vi, descriptor_at(peer, DEPTH), peer->handle));
        while ((result = VipSendDone(peer->vi, &descriptor)) == VIP_NOT_DONE)
            sched_yield();
        EXPECT(result == VIP_SUCCESS && descriptor == descriptor_at(peer, DEPTH));
    }
    return NULL;
}

static void *receive_all(void *argument)
{
    Peer *peer = (Peer *)argument;
    VIP_DESCRIPTOR *descriptor;
    VIP_RETURN result;
    unsigned message, n;
    char *data;

    for (message = 0; message < MESSAGES; message++) {
        while ((result = VipRecvDone(peer->vi, &descriptor)) == VIP_NOT_DONE)
            sched_yield();
        EXPECT(result == VIP_SUCCESS && descriptor == descriptor_at(peer, message % DEPTH));
        EXPECT(descriptor->CS.Length == BYTES);
        data = data_at(peer, message % DEPTH);
        for (n = 0; n < BYTES; n++)
            EXPECT(data[n] == byte_of(peer->rank, own_rank, message, n));
        describe_at(peer, message % DEPTH);
        EXPECT_OK(VipPostRecv(peer->vi, descriptor, peer->handle));
        pthread_mutex_lock(&peer->lock);
        peer->received_count++;
        pthread_cond_signal(&peer->more);
        pthread_mutex_unlock(&peer->lock);
    }
    return NULL;
}

/* Waits until all processes have received all messages, before any of them disconnects. */
static void wait_for_all(void)
{
    char line[16];

    printf("rank %u: %u messages with each of %u peers\n", own_rank, MESSAGES, ranks - 1);
    fflush(stdout);
    /* The parent closes standard input when all processes have printed this line. */
    while (fgets(line, sizeof line, stdin) != NULL)
        ;
}

int main(int argc, char **argv)
{
    static pthread_t senders[PEERS], receivers[PEERS];
    char on_stack[PEERS / KINDS][REGION + VIP_DESCRIPTOR_ALIGNMENT];
    unsigned rank;

    EXPECT(argc >= 4 && argc - 3 <= PEERS);
    own_rank = (unsigned)atoi(argv[1]);
    ranks = (unsigned)argc - 3;
    nic_open(&nic);
    EXPECT_OK(VipNSInit(nic.nic, NULL));
    for (rank = 0; rank < ranks; rank++) {
        if (rank == own_rank)
            continue;
        peer_prepare(&peers[rank], rank, (own_rank + rank) % KINDS, on_stack[rank / KINDS]);
    }
    for (rank = 0; rank < ranks; rank++) {
        if (rank != own_rank)
            peer_connect(&peers[rank], argv[2], argv[3 + rank]);
    }
    for (rank = 0; rank < ranks; rank++) {
        if (rank == own_rank)
            continue;
        EXPECT(pthread_create(&senders[rank], NULL, send_all, &peers[rank]) == 0);
        EXPECT(pthread_create(&receivers[rank], NULL, receive_all, &peers[rank]) == 0);
    }
    for (rank = 0; rank < ranks; rank++) {
        if (rank == own_rank)
            continue;
        pthread_join(senders[rank], NULL);
        pthread_join(receivers[rank], NULL);
    }
    wait_for_all();
    for (rank = 0; rank < ranks; rank++) {
        if (rank == own_rank)
            continue;
        vi_close(peers[rank].vi);
        EXPECT_OK(VipDeregisterMem(nic.nic, peers[rank].region, peers[rank].handle));
    }
    EXPECT_OK(VipNSShutdown(nic.nic));
    nic_close(&nic);
    return 0;
}
