"""Disables checksum and segmentation offload of an interface.

  disable_offloads.py INTERFACE

Without this, a veth passes on frames that are longer than the MTU or lack
checksums, since it claims to support both offloads.
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
    """Run an ethtool command of an interface; return its value."""
    data = ctypes.create_string_buffer(struct.pack("II", command, value))
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(data))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
    return struct.unpack_from("II", data)[1]


def main():
    """Disable the offloads."""
    interface = sys.argv[1]
    # Segmentation offload requires checksum offload.
    ethtool(interface, ETHTOOL_STXCSUM, 0)
    if ethtool(interface, ETHTOOL_GTXCSUM) != 0:
        sys.exit(f"{interface}: checksum offload is still enabled")


if __name__ == "__main__":
    main()
