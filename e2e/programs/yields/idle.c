/* Opens a NIC and makes no calls on it until standard input ends. */
#include <stdio.h>

#include <vipl.h>

int main(void)
{
    VIP_NIC_HANDLE nic;

    if (VipOpenNic("VINIC", &nic) != VIP_SUCCESS) {
        return 1;
    }
    puts("open");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return VipCloseNic(nic) != VIP_SUCCESS;
}
