"""The dataset swarm: volunteers rephrase a corpus chunk by chunk, and the site publishes the result as a dataset.

sources, source_filters, quality, producer     read a corpus and cut it into packets
sessions, node_routes                          let volunteers join
assignment, submission, release                assign packets, check results, return unfinished packets
reputation, withdrawal                         decide whom to trust; withdraw a banned volunteer's texts
shards, dataset_files, publishing              write Parquet shards and push them to the Hugging Face Hub
error_isolation                                keep the error of one campaign from the others
statistics, views, public_routes               progress for pages and the public API
"""
