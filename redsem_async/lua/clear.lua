-- clear: delete the semaphore. Holders lose their permits, and waiters start again.
--
-- What stays for a minute or so are the numbers that hubs have used, so that a call that was sent
-- before and comes late does not act.
--
-- KEYS     as in the head
-- ARGV     number  of this call, which acts once at most
-- RETURNS  {tag}

local number = tonumber(ARGV[5])

load_state()
if already_ran(number) then return { tag } end
for _, owner in ipairs(call('ZRANGE', hubs, 0, -1)) do
  if owner ~= hub then publish_to(owner, 'cleared', '-') end
  call('HDEL', meta, owner .. ':who', owner .. ':deaf', owner .. ':gone', owner .. ':waits')
end
-- The marker stays: that the holders are gone is no loss of state.
call('UNLINK', holders, tokens, extra, limit, line)
if released then call('UNLINK', released) end
call('HDEL', meta, 'mode', 'ahead', 'offset', 'lost', 'grace', 'aside')
-- Tokens that have run ahead of the server's clock may not be drawn again.
if last < wall_us then
  call('HDEL', meta, 'counter')
  last = 0
end
stamp_us = now_us  -- without the offset, which is forgotten
note_call(number)
keep(meta, counter_lead() + SLACK)
return { tag }
