"""Links between stages: `runtime.connectors.port.Connector`, carried out in shared memory and over TCP.

A link has two ends; each is used by one thread, and no call waits (but `poll`, for a fraction of a
millisecond, while the peer copies a long body). How to join them:

    near, end = shared_memory.pair()                       # one host; `near` may be sent to at once
    subprocess.Popen([..., str(end.fileno())], pass_fds=(end.fileno(),)); end.close()
    far = shared_memory.join(socket.socket(fileno=int(sys.argv[1])))       # in that process
    near = tcp.Listener(host, port, secret).accept(timeout_s)              # two hosts
    far = tcp.connect(host, port, secret)

LinkLimits (windows, sizes) are given to `pair` or the Listener; the other end is told. How to send:

    if link.can_send("thinker>talker"):
        link.send(Message("thinker>talker", "handoff", encode(order), (array_of(rows),)))

An order or fact is the header (`runtime.codec.encode`), its tensors are arrays beside it (`tensors.array_of`,
numpy's `Array.of`); bfloat16 goes too. What was sent is given away: don't write those tensors any more (of a
pool that is written again, send a copy). Where `can_send` is false, keep the message in a queue of your own
and try again after the next `poll`, or don't produce: that is the credit on the edge. How to receive, beside
whatever else one waits for:

    select.select([link, lane], [], [], wait_s)
    for message in link.poll():
        tensor = tensor_of(message.arrays[0]).to(device, copy=True)
        link.release(message)                  # credit goes back, the memory is written again

Whoever holds a message holds its credit: 64 messages or 32 MB of a channel, whichever is first, and the
sender stops. So release when the payload is consumed, not when it arrives; a view after `release` shows other
data. Give each edge and each direction of control a channel of its own. Order holds within a channel only: an
order that needs a payload travels on the same channel, or with it.

`poll` also sends on what waits, so call it whenever `fileno` is readable, also when nothing is expected. It
raises ConnectorClosed when the peer has said goodbye and all it sent is read; PeerLost, a kind of it, when
its process has ended without (noticed at once), its host vanished (after a minute), or what it sent cannot
be read. Last words: `send`, then `close(linger_s=1.0)`. A process that is forked, not spawned, while a link
is open holds it open too, and then nobody notices the end.

What lies where: frames, reader, inbox and outbox are the stream's grammar and the books of credit; stream
turns them over a socket; shared_memory and tcp make the sockets; arena is the memory without a name; tensors
is the only module with torch. Nothing is pickled anywhere.
"""
