"""The bytes of sources: numbered files on disks and in object stores, and the notes beside them."""
