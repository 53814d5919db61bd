"""A run's copy in a store: who may write it, what it consists of, how it is sent and restored, how it is read.

    lease     the lease that admits one driver
    listing   the parts of files, and of the list of all files, that keep what is sent in proportion to the run. Pure
    manifest  the lists of files, each of one consistent state of the run. Pure
    mirror    sends what is closed, then the manifest; makes a folder from the newest manifest
    reading   the newest state as files that can only be read, on a host that has no folder of the run

`cluster.loop.persistence.uploading` decides when a run does so; `actors.archive.store` and `bucket` are the stores.
"""
