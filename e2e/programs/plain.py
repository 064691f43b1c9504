"""Has the kernel send frames from an interface as they are on a wire.

  plain.py INTERFACE

None is longer than the MTU, and every checksum is computed.  A veth promises to
do both, and hands the frames on as they are.
"""

import ctypes
import fcntl
import socket
import struct
import sys

# <linux/sockios.h>, <linux/ethtool.h>
SIOCETHTOOL = 0x8946
ETHTOOL_GTXCSUM = 0x00000016
ETHTOOL_STXCSUM = 0x00000017


def ethtool(interface, command, value=0):
    """Ask or tell the driver of an interface something; return its answer."""
    data = ctypes.create_string_buffer(struct.pack("II", command, value))
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(data))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
    return struct.unpack_from("II", data)[1]


def main():
    """Take the promises of an interface back."""
    interface = sys.argv[1]
    # Without its checksums it cannot cut long segments either.
    ethtool(interface, ETHTOOL_STXCSUM, 0)
    if ethtool(interface, ETHTOOL_GTXCSUM) != 0:
        sys.exit(f"{interface} still leaves checksums to others")


if __name__ == "__main__":
    main()
