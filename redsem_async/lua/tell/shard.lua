-- publish_to(): sends a push message to the hub *owner*, on its channel in the semaphore's shard.
-- Returns the number of subscribers that received it, or nil where that is unknown.
--
-- Redis replicates the message to the other nodes of the shard. A demoted master has ended its
-- subscriptions by the time it gets the message, because its demotion arrives on the same link.
local function publish_to(owner, kind, what)
  local shard, name = string.match(holders, '^(.-{(.*)}:)')
  local receivers = redis.pcall('SPUBLISH', shard .. '@' .. owner,
    kind .. ' ' .. what .. ' ' .. name)
  if receivers == 0 and call('HGET', meta, owner .. ':no_push') == '2' then return nil end
  return type(receivers) == 'number' and receivers or nil
end
