"""The shard: what TGI's launcher starts and TGI's router drives in place of `text-generation-server`."""
