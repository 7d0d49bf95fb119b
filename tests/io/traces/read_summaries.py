"""Prints what TensorBoard's own reader finds in a folder of event files, one value a line."""
import sys

from tensorboard.backend.event_processing import plugin_event_accumulator as accumulator
from tensorboard.util import tensor_util

events = accumulator.EventAccumulator(sys.argv[1], size_guidance={accumulator.TENSORS: 0})
events.Reload()
for tag in sorted(events.Tags()["tensors"]):
    plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
    for event in events.Tensors(tag):
        value = tensor_util.make_ndarray(event.tensor_proto)
        if plugin == "histograms":  # rows of left edge, right edge, count
            text = "count %g" % value[:, 2].sum()
            if len(value) > 0:
                text += " between %g and %g" % (value[0, 0], value[-1, 1])
        else:
            text = "%g" % value.item()
        print(plugin, tag, event.step, "%.1f" % event.wall_time, text)
