"""A run's copy in a store: its lease, its manifests, uploads and restoration, and readers.

    lease     the lease that admits one driver
    manifest  the lists of files, each of one consistent state of the run. Pure
    mirror    sends closed files, then the manifest; restores a folder from the newest manifest
    reading   the newest state as files that can only be read, on a host that has no folder of the run

`cluster.loop.persistence.uploading` decides when a run does so; `kit.archive.store` and `bucket` are the stores.
"""
