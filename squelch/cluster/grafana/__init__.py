"""The dashboards: read, pushed through Grafana's HTTP API, exported as files for it.

    boards      the dashboards and alert rules that ship with Squelch. Pure
    changes     whether a push may replace a dashboard of the server, and how two dashboards differ. Pure
    address     addresses that a user gives. Pure
    server      Grafana's HTTP API (grafana-client), with its errors in our words
    push        data source, folder and dashboards, in this order
    kubernetes  scraping, alert rules and dashboards as objects for the Prometheus operator and Grafana's sidecar. Pure
    files       all of them and provisioning files in a folder, for people who mount or apply them

Who waits for whom: a command waits for the server, `TIMEOUT_S` for each answer's next bytes; then it ends with the
server's address. Nothing of a run waits for Grafana.

**Changes made by hand.** Grafana keeps a history of every dashboard. A push leaves a message with the digest of what it
pushed in that history. A dashboard whose newest version has no such message was changed by somebody else since, and
is kept unless that is asked for. A push names the version that it has read, so that Grafana refuses it (412) if
somebody saves the dashboard in between.
"""
