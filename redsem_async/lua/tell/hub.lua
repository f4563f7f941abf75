-- Tells the hub *owner* something, on its one channel. Returns how many heard it; nil where that
-- cannot be known. Replicas do not repeat it: one of them may be a master that was demoted, where
-- *owner* still listens, and would hear of a grant that nobody heard of here.
local function publish_to(owner, kind, what)
  local prefix, name = string.match(holders, '^(.-){(.*)}')
  redis.set_repl(redis.REPL_NONE)
  local receivers = redis.pcall('PUBLISH', prefix .. '@' .. owner,
    kind .. ' ' .. what .. ' ' .. name)
  redis.set_repl(redis.REPL_ALL)
  return type(receivers) == 'number' and receivers or nil
end
