"""The number of parts."""


class IidPartitioner:
    def __init__(self, num_partitions: int) -> None:
        self.count = num_partitions
