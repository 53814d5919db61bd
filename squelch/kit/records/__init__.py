"""What several folders exchange: tasks, trajectories and groups, pictures, content keys, failures."""
