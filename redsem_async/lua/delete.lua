-- delete: delete the semaphore. Holders lose their permits, and waiters send their requests again.
--
-- The numbers that hubs have used stay for about a minute, so that an operation which was sent
-- before and arrives late does nothing.
--
-- KEYS     as in the head
-- ARGV     number  number of this operation, which runs at most once
-- RETURNS  {tag}
-- USES     load_state, already_ran, publish_to, wall_us, note_call, keep, counter_lead,
--          SLACK, keyed, slotted
--          sets last

local number = tonumber(ARGV[5])

load_state()
if already_ran(number, 'changes') then return { tag } end
for _, owner in ipairs(call('ZRANGE', hubs, 0, -1)) do
  if owner ~= hub then publish_to(owner, 'deleted', '-') end
  call('HDEL', meta, owner .. ':client', owner .. ':no_push', owner .. ':unreachable')
end
call('UNLINK', holders, tokens, extra, limit, queue)
if keyed then keyed.delete() end
if slotted then slotted.delete() end
call('HDEL', meta, 'mode', 'layout', 'ahead', 'returns', 'hold',
  'looked', 'passed', 'limit', 'back_off')
-- A counter ahead of the server's clock stays, because its tokens must not be issued again.
if last < wall_us then
  call('HDEL', meta, 'counter')
  last = 0
end
note_call(number, 'changes')
keep(meta, counter_lead() + SLACK)
return { tag }
