-- publish_to(): sends a push message to the hub *owner*, on its one channel. Returns the number of
-- subscribers that received it, or nil where that is unknown: some servers and proxies say 0 although
-- the message arrives.
--
-- Redis does not replicate the message. A replica may be a demoted master to which *owner* is still
-- subscribed: the message would then reach *owner*, while the number here is 0.
local function publish_to(owner, kind, what)
  local prefix, name = string.match(holders, '^(.-){(.*)}')
  pcall(redis.set_repl, redis.REPL_NONE)  -- some servers have no set_repl, or refuse it
  local receivers = redis.pcall('PUBLISH', prefix .. '@' .. owner,
    kind .. ' ' .. what .. ' ' .. name)
  pcall(redis.set_repl, redis.REPL_ALL)
  if receivers == 0 and call('HGET', meta, owner .. ':no_push') == '2' then return nil end
  return type(receivers) == 'number' and receivers or nil
end
