"""What stands in for the machine when a whole cluster runs inside one process, on a virtual clock."""
