"""Names of files and formats that a data set's folder is made of."""

LOG, MANIFEST, LOCK, DISAGREEMENTS = "log.jsonl", "manifest.json", "lock", "disagreements"
CHECK_FORMAT = "octocp.dataset-check/1"
MANIFEST_FORMAT = "octocp.dataset-manifest/1"
VIEW, SHARDS = "rows.jsonl.gz", "shards"
# Of submitit; it may be there before anything else is.
SLURM = "slurm"
