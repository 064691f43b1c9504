/* Room for an address with its host part and discriminator. */
#ifndef ADDRESS_H
#define ADDRESS_H

#include <vipl.h>

typedef union {
    VIP_NET_ADDRESS address;
    unsigned char room[256];
} Address;

#endif
