"""The peak of resident memory."""

import mmap

from rpr.io.system import reset_resident_peak, resident_peak


def test_resident_peak_is_that_since_it_was_reset():
    size = 40 * 2**20
    reset_resident_peak()
    before = resident_peak()

    def large():
        with mmap.mmap(-1, size) as pages:  # never memory that another test has freed, as a tensor's can be
            for _ in range(40):
                pages.write(bytes(2**20))

    large()
    assert resident_peak() > before + 0.9 * size
    reset_resident_peak()
    assert resident_peak() < before + 0.5 * size, "measured anew"
