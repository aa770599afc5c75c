"""Where the bytes of sources come from: numbered files on disks and in object stores, and what is noted beside them."""
