/* A VIP_NET_ADDRESS with memory for host address and discriminator. */
#ifndef ADDRESS_H
#define ADDRESS_H

#include <vipl.h>

typedef union {
    VIP_NET_ADDRESS address;
    unsigned char bytes[256];
} Address;

#endif
